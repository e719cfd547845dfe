"""gRPC, with threads and with asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoppable._engine.guard import PassThrough
from stoppable._engine.outgoing import calls, labels
from stoppable._engine.outgoing.bodies import AsyncBody, BlockingBody
from stoppable._engine.plain import patches

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


def _label(method: Any) -> tuple[str, labels.Label]:
    target = getattr(method, "_target", b"")
    place = (target.decode() if isinstance(target, bytes) else str(target)).removeprefix("dns:///")
    return place.rpartition(":")[0], labels.of_grpc(place, method._method.decode())


def _result_of(method: Any, call: calls.Call, args: Any, options: Any) -> Any:
    """Make the call in a way that can be cancelled from another thread, and wait for it."""
    future = method.future(*args, **options)
    with calls.blocking(call, lambda: bool(future.cancel() or True)):
        result = future.result()
    call.leave()
    return result, future


def _call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        return original(self, *args, **options) if call is None else _result_of(self, call, args, options)[0]

    return invoke


def _with_call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def with_call(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        return original(self, *args, **options) if call is None else _result_of(self, call, args, options)

    return with_call


def _stream_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        if call is None:
            return original(self, *args, **options)
        try:
            answers = original(self, *args, **options)
        except BaseException as error:
            call.leave(error)
            raise
        call.answer = None  # what arrives are objects
        return _Stream(answers, call, cut=lambda: bool(answers.cancel() or True))

    return stream


class _Stream(PassThrough, BlockingBody):
    """The answers to one call; otherwise it behaves like what gRPC returns."""

    __slots__ = ()

    def _closables(self) -> tuple[Any, ...]:
        return (_Cancelling(self._source),)


class _AsyncStream(PassThrough, AsyncBody):
    """The answers to one call, which can also be read with ``read()``."""

    __slots__ = ()

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


def _async_call_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def invoke(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        if call is None:
            return original(self, *args, **options)
        try:
            answer = original(self, *args, **options)
        except BaseException as error:
            call.leave(error)
            raise
        answer.add_done_callback(lambda done: call.leave(asyncio.CancelledError() if done.cancelled() else None))
        return answer

    return invoke


def _async_stream_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **options: Any) -> Any:
        call = calls.begin(_label, self)
        if call is None:
            return original(self, *args, **options)
        try:
            answers = original(self, *args, **options)
        except BaseException as error:
            call.leave(error)
            raise
        call.answer = None
        return _AsyncStream(answers, call)

    return stream
