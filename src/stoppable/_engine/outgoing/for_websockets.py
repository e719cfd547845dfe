"""The package websockets."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from stoppable._engine.outgoing import labels
from stoppable._engine.outgoing.websocket import method_of
from stoppable._engine.plain import patches


def install(module: ModuleType) -> None:
    """Make what clients send and receive boundaries; what servers do is not."""
    for name in ("send", "recv", "recv_streaming"):
        patches.put(module.ClientConnection, name, functools.partial(method_of, _label))


def _label(connection: Any) -> tuple[str, labels.Label]:
    request = connection.request  # None until the handshake has ended
    host = "" if request is None else request.headers.get("Host", "")
    return host.partition(":")[0], labels.of_websocket(host, "" if request is None else request.path)
