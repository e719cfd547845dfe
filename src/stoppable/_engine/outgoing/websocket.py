"""Websockets: each message that is sent or awaited is a boundary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from stoppable._engine.outgoing import calls, labels


def method_of(label: Callable[[Any], tuple[str, labels.Label]], original: Callable[..., Any]) -> Callable[..., Any]:
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
