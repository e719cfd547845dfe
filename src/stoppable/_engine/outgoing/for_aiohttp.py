"""aiohttp: requests, and what is sent to and received from a websocket."""

from __future__ import annotations

import functools
import json as json_module
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls
from stoppable._engine.outgoing.calls import AsyncBody, is_stream
from stoppable._engine.outgoing.for_websockets import method_of

_READS = ("read", "readany", "readline", "readuntil", "readchunk", "readexactly")
_SWITCHING_PROTOCOLS = 101


def install(module: ModuleType) -> None:
    """Make the requests of aiohttp's clients boundaries."""
    patches.put(module.ClientSession, "_request", functools.partial(_request_of, module))
    patches.put(module.ClientResponse, "close", _closing_of)
    patches.put(module.ClientResponse, "release", _closing_of)
    for name in ("send_str", "send_bytes", "receive"):
        patches.put(module.ClientWebSocketResponse, name, functools.partial(method_of, _label_of_websocket))


def _request_of(module: ModuleType, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def request(self: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        call = await calls.begin_async(_label, self, method, str_or_url, options)
        if call is None:
            return await original(self, method, str_or_url, **options)
        try:
            response = await original(self, method, str_or_url, **options)
        except BaseException as error:
            call.leave(error)
            raise
        if response.status == _SWITCHING_PROTOCOLS:
            call.leave()
        else:
            response.content = _Content(module, response, call)
        return response

    return request


def _closing_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def close(self: Any) -> Any:
        if isinstance(self.content, _Content):
            self.content.body.end()
        return original(self)

    return close


def _label(session: Any, method: str, url: Any, options: dict[str, Any]) -> tuple[str, calls.Label]:
    base = getattr(session, "_base_url", None)
    parts = urlsplit(str(url) if base is None else str(base.join(type(base)(str(url)))))
    body = options.get("data")
    if isinstance(options.get("json"), dict):  # only the name of the model matters
        body = json_module.dumps({"model": str(options["json"].get("model") or "")})
    return parts.hostname or "", calls.request_label(method, parts.netloc.rpartition("@")[2], parts.path, body)


def _label_of_websocket(websocket: Any) -> tuple[str, calls.Label]:
    url = websocket._response.url
    return url.host or "", calls.websocket_label(url.authority.rpartition("@")[2], url.path)


class _ResponseCloser:
    """Closes an answer that was not read to its end; holds it weakly, because the answer holds its content."""

    def __init__(self, response: Any) -> None:
        self._response = weakref.ref(response)

    def close(self) -> None:
        response = self._response()
        if response is not None:
            response.close()


class _Content:
    """The content of an answer; each read of it is a part of the run."""

    def __init__(self, module: ModuleType, response: Any, call: calls.OutgoingCall) -> None:
        self._streams = module.streams
        self._content = response.content
        self._answer = call.answer
        finish = not is_stream(response.headers.get("content-type"))
        self.body = AsyncBody(_ResponseCloser(response), call, finish=finish)
        if self._content.is_eof():
            self.body.end()
        else:
            self._content.on_eof(self.body.end)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._content, name)
        return functools.partial(self._read, attribute) if name in _READS else attribute

    async def _read(self, read: Callable[..., Any], *args: Any, **options: Any) -> Any:
        # What has arrived as a whole may be read after a stop.
        has_arrived = self.body.is_over
        data = await (read(*args, **options) if has_arrived else self.body.read(read, *args, **options))
        if self._answer is not None:
            self._answer.add(data[0] if isinstance(data, tuple) else data)
        return data

    def __aiter__(self) -> Any:
        return self._streams.AsyncStreamIterator(self.readline)

    def iter_any(self) -> Any:
        return self._streams.AsyncStreamIterator(self.readany)

    def iter_chunked(self, n: int) -> Any:
        return self._streams.AsyncStreamIterator(lambda: self.read(n))

    def iter_chunks(self) -> Any:
        return self._streams.ChunkTupleAsyncStreamIterator(self)
