"""Pydantic AI: stop an agent anywhere and keep its conversation usable, with unmodified pydantic-ai 2.0 and later.

``Agent(…, capabilities=[Stoppable()])`` makes the model calls and tools of an agent boundaries of the run that calls
it. ``history_of(run)`` returns the ``message_history`` of the next turn. ``instrument()`` does it for every agent that
is called inside a run.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import pydantic_ai as _pydantic_ai  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"pydantic-ai is not installed: {_pip_install('pydantic-ai')}", name=_error.name) from _error

from stoppable.adapters.pydantic_ai.agents import as_agent
from stoppable.adapters.pydantic_ai.capability import Stoppable, instrument
from stoppable.adapters.pydantic_ai.histories import history_of

__all__ = ["Stoppable", "as_agent", "history_of", "instrument"]
