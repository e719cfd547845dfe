"""transformers: a stop ends a local model's generation at the next token, and the text so far is kept.

``guard(model, tokenizer)`` or ``guard(pipeline)`` is all that a program needs. Outside a run nothing changes.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import transformers as _transformers  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"transformers is not installed: {_pip_install('transformers')}", name=_error.name) from _error
try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as _error:
    raise ImportError(
        "PyTorch is not installed: `pip install torch`, or the build for your GPU", name="torch"
    ) from _error

from stoppable.adapters.transformers.models import guard

__all__ = ["guard"]
