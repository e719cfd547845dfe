"""Google ADK: a cancel that cancels, on unmodified google-adk 1.39 and 2.x.

``install(app)`` is for the app that ``get_fast_api_app`` returns, ``wrap(runner)`` for a Runner that you drive.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import google.adk as _adk  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"google-adk is not installed: {_pip_install('adk')}", name=_error.name) from _error

from stoppable.adapters.adk.runners import wrap
from stoppable.adapters.adk.web_server import install

__all__ = ["install", "wrap"]
