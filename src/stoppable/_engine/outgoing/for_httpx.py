"""httpx, and httpx2, which is its continuation."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls
from stoppable._engine.outgoing.calls import AsyncBody, BlockingBody

SPARE = "stoppable.spare"
"""An extension of requests that are no boundaries: those of stoppable itself."""


def install(module: ModuleType) -> None:
    """Make the requests of a module's clients boundaries."""
    blocking_stream, async_stream = _streams(module)
    patches.put(module.Client, "send", functools.partial(_send_of, blocking_stream))
    patches.put(module.AsyncClient, "send", functools.partial(_async_send_of, async_stream))


def _streams(module: ModuleType) -> tuple[type[Any], type[Any]]:
    """Return the classes of bodies; a client accepts no body that is not of its own base class."""

    # mypy cannot know the base classes: they are those of httpx or of httpx2.
    class BlockingStream(module.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, body: BlockingBody) -> None:
            self._body = body

        def __iter__(self) -> BlockingBody:
            return self._body

        def close(self) -> None:
            self._body.close()

    class AsyncStream(module.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, body: AsyncBody) -> None:
            self._body = body

        def __aiter__(self) -> AsyncBody:
            return self._body

        async def aclose(self) -> None:
            await self._body.aclose()

    return BlockingStream, AsyncStream


def _send_of(stream_class: type[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        call = None if SPARE in request.extensions else calls.begin(_label, request)
        if call is None:
            return original(self, request, stream=stream, **options)
        with calls.blocking(call):
            response = original(self, request, stream=stream, **options)
        if not stream or response.is_closed:
            _finish(call, response)
        else:
            finish, cut = _is_answer(response), functools.partial(_cut, response.extensions)
            response.stream = stream_class(BlockingBody(response.stream, call, finish=finish, cut=cut))
        return response

    return send


def _async_send_of(stream_class: type[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        call = None if SPARE in request.extensions else await calls.begin_async(_label, request)
        if call is None:
            return await original(self, request, stream=stream, **options)
        try:
            response = await original(self, request, stream=stream, **options)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                _cut_failed(error)
            call.leave(error)
            raise
        if not stream or response.is_closed:
            _finish(call, response)
        else:
            finish, cut = _is_answer(response), functools.partial(_cut, response.extensions)
            response.stream = stream_class(AsyncBody(response.stream, call, finish=finish, cut=cut))
        return response

    return send


def _is_answer(response: Any) -> bool:
    """Return whether a body is of no use before its end; huggingface_hub reads every answer as a stream."""
    return str(response.headers.get("content-type")).partition(";")[0].strip() == "application/json"


def _finish(call: calls.OutgoingCall, response: Any) -> None:
    if call.answer is not None and hasattr(response, "_content"):
        call.answer.add(response.content)
    call.leave()


def _label(request: Any) -> tuple[str, calls.Label]:
    url = request.url
    # Only a body that is in memory has `_content`; to read any other would use it up.
    body = getattr(request, "_content", None)
    return url.host, calls.request_label(request.method, url.netloc.decode(), url.path, body)


def _cut(extensions: Any) -> bool:
    """Shut the connection of an answer down; not one of HTTP/2, which is shared with other requests.

    https://www.python-httpx.org/advanced/extensions/#network_stream
    """
    stream = extensions.get("network_stream") if isinstance(extensions, Mapping) else None
    if stream is None or extensions.get("http_version") != b"HTTP/1.1":
        return False
    return calls.shut_down(stream.get_extra_info("socket"))


def _cut_failed(error: BaseException) -> None:
    """Shut down the connection of a request that was cancelled before its answer came.

    httpcore closes it too, but a second cancel, such as that of KILL, hits it while it does so, and the server would
    go on. Only the functions that the cancel went through know which connection it was.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_filename.endswith("http11.py"):
            stream = getattr(frame.f_locals.get("self"), "_network_stream", None)
            if stream is not None:
                calls.shut_down(stream.get_extra_info("socket"))
                return
        trace = trace.tb_next
