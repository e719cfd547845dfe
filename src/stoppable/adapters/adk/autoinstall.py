"""Makes ``adk web`` and ``adk api_server`` stoppable, if ``services.py`` in the folder of the agents imports it.

``STOPPABLE_STORE`` says where the runs are kept (by default in memory). ``STOPPABLE_ADK_ON_DISCONNECT`` decides about a
run whose client leaves (``keep`` or ``stop``). ``STOPPABLE_ADK_CONTROL_PORT`` adds a port for stops.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, cast

from stoppable.adapters.adk import names
from stoppable.adapters.adk.runners import OnDisconnect
from stoppable.adapters.adk.web_server import install
from stoppable.stores.urls import url_in_environment
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.adapters.adk")


def _installing(real: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(real)
    def get_fast_api_app(self: Any, *args: Any, **kwargs: Any) -> Any:
        app = real(self, *args, **kwargs)
        store = url_in_environment()
        port = os.environ.get("STOPPABLE_ADK_CONTROL_PORT")
        policy = os.environ.get("STOPPABLE_ADK_ON_DISCONNECT") or None
        install(
            app,
            Supervisor(store),
            on_disconnect=cast("OnDisconnect | None", policy),
            control_port=int(port) if port else None,
        )
        # A warning: ADK hides lower levels of other packages, and does not report a services.py that fails.
        _logger.warning("stoppable is active: POST …/sessions/{id}:cancel stops a run; its page is at /stoppable/")
        return app

    return get_fast_api_app


if not hasattr(names.SERVER.get_fast_api_app, "__wrapped__"):
    names.SERVER.get_fast_api_app = _installing(names.SERVER.get_fast_api_app)
