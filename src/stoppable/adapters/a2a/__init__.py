"""A2A: a cancel that cancels, on the official SDK (a2a-sdk 1.3 and newer).

``StoppableExecutor`` makes any AgentExecutor stoppable, and ``StoppableRequestHandler`` gives the SDK's server its
cancel. ``client`` makes tasks of other agents nodes of the calling run's tree.
``Exposed`` is how ``stoppable serve`` offers agents over A2A.
"""

from __future__ import annotations

from stoppable._extras import pip_install as _pip_install

try:
    import a2a.server.routes as _a2a  # noqa: F401
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"a2a-sdk is not installed: {_pip_install('a2a')}", name=_error.name) from _error

from stoppable.adapters.a2a.client import client
from stoppable.adapters.a2a.executor import POLICY, StoppableExecutor
from stoppable.adapters.a2a.handler import StoppableRequestHandler
from stoppable.adapters.a2a.serving import Exposed

__all__ = ["POLICY", "Exposed", "StoppableExecutor", "StoppableRequestHandler", "client"]
