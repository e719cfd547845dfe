"""Websockets: each message that is sent or awaited is a boundary; and the package websockets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls


def method_of(label: Callable[[Any], tuple[str, calls.Label]], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a websocket as a boundary."""
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def method_async(self: Any, *args: Any, **options: Any) -> Any:
            call = await calls.begin_async(label, self)
            if call is None:
                return await original(self, *args, **options)
            try:
                result = await original(self, *args, **options)
            except BaseException as error:
                call.leave(error)
                raise
            call.leave()
            return result

        return method_async

    @functools.wraps(original)
    def method(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(label, self)
        if call is None:
            return original(self, *args, **options)
        with calls.blocking(call, lambda: calls.shut_down(getattr(self, "socket", None))):
            result = original(self, *args, **options)
        call.leave()
        return result

    return method


def install(module: ModuleType) -> None:
    """Make what clients send and receive boundaries; what servers do is not."""
    for name in ("send", "recv", "recv_streaming"):
        patches.put(module.ClientConnection, name, functools.partial(method_of, _label))


def _label(connection: Any) -> tuple[str, calls.Label]:
    request = connection.request  # None until the handshake has ended
    host = "" if request is None else request.headers.get("Host", "")
    return host.partition(":")[0], calls.websocket_label(host, "" if request is None else request.path)
