"""LlamaIndex: a stop reaches every agent, workflow and tool, and the memory of the stopped turn is complete.

``install()`` once per process is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import llama_index.core as _llama_index  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"llama-index-core is not installed: {_pip_install('llama-index')}", name=_error.name) from _error

from stoppable.adapters.llama_index.agents import as_agent
from stoppable.adapters.llama_index.workflows import install

__all__ = ["as_agent", "install"]
