"""gRPC, with threads and with asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoppable._engine.guard import PassThrough
from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls
from stoppable._engine.outgoing.calls import AsyncBody, BlockingBody

_ONE_ANSWER = ("_UnaryUnaryMultiCallable", "_StreamUnaryMultiCallable")
_STREAMED = ("_UnaryStreamMultiCallable", "_SingleThreadedUnaryStreamMultiCallable", "_StreamStreamMultiCallable")


def install(module: ModuleType) -> None:
    """Make the calls of blocking clients boundaries."""
    for name in _ONE_ANSWER:
        patches.put(getattr(module, name), "__call__", _call_of)
        patches.put(getattr(module, name), "with_call", _with_call_of)
    for name in _STREAMED:
        patches.put(getattr(module, name), "__call__", _stream_of)


def install_aio(module: ModuleType) -> None:
    """Make the calls of asyncio clients boundaries."""
    for name in ("UnaryUnaryMultiCallable", "StreamUnaryMultiCallable"):
        patches.put(getattr(module, name), "__call__", _async_call_of)
    for name in ("UnaryStreamMultiCallable", "StreamStreamMultiCallable"):
        patches.put(getattr(module, name), "__call__", _async_stream_of)


def _label(method: Any) -> tuple[str, calls.Label]:
    target = getattr(method, "_target", b"")
    place = (target.decode() if isinstance(target, bytes) else str(target)).removeprefix("dns:///")
    return place.rpartition(":")[0], calls.grpc_label(place, method._method.decode())


def _begin(call: calls.OutgoingCall | None, make: Callable[[], Any]) -> Any:
    """Begin a call of gRPC inside its boundary, and leave that if it cannot begin."""
    try:
        answer = make()
    except BaseException as error:
        if call is not None:
            call.leave(error)
        raise
    if call is not None:
        call.answer = None  # what arrives are objects, not text
    return answer


def _call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    return _waiting_of(original, lambda result, _future: result)


def _with_call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    return _waiting_of(original, lambda result, future: (result, future))


def _waiting_of(original: Callable[..., Any], returned: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        if call is None:
            return original(self, *args, **options)
        # As a future, because that can be cancelled from another thread.
        future = _begin(call, lambda: self.future(*args, **options))
        with calls.blocking(call, future.cancel):
            result = future.result()
        call.leave()
        return returned(result, future)

    return invoke


def _stream_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        answers = _begin(call, lambda: original(self, *args, **options))
        return answers if call is None else _Stream(answers, call, cut=lambda: bool(answers.cancel() or True))

    return stream


def _async_call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        answer = _begin(call, lambda: original(self, *args, **options))
        if call is not None:
            answer.add_done_callback(lambda done: call.leave(asyncio.CancelledError() if done.cancelled() else None))
        return answer

    return invoke


def _async_stream_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        answers = _begin(call, lambda: original(self, *args, **options))
        return answers if call is None else _AsyncStream(answers, call)

    return stream


class _Stream(PassThrough, BlockingBody):
    """The answers to one call; otherwise it behaves like what gRPC returns."""

    __slots__ = ()

    def _closables(self) -> tuple[Any, ...]:
        return (_Cancelling(self._source),)


class _AsyncStream(PassThrough, AsyncBody):
    """The answers to one call, which can also be read with ``read()``."""

    __slots__ = ()

    # gRPC's own method takes the place of the one that other clients' bodies are read with.
    async def read(self) -> Any:  # type: ignore[override]
        """Read the next answer, as gRPC does."""
        return await self._step_async(self._source.read)

    def _closables(self) -> tuple[Any, ...]:
        return (_Cancelling(self._source),)


class _Cancelling:
    """Closes a call by cancelling it."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def close(self) -> None:
        self._call.cancel()
