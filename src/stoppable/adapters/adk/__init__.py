"""Google ADK: a cancel that cancels, on unmodified google-adk 1.39 and 2.x.

``install(app)`` is for the app that ``get_fast_api_app`` returns, ``wrap(runner)`` for a Runner that you drive.
"""

from __future__ import annotations

try:
    import google.adk as _adk  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError('google-adk is not installed: pip install "stoppable[adk]"', name=_error.name) from _error

from stoppable.adapters.adk.apps import install
from stoppable.adapters.adk.runners import wrap

__all__ = ["install", "wrap"]
