"""``http.client``, and so everything that is built on it: urllib, urllib3, requests, botocore."""

from __future__ import annotations

import functools
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from stoppable._engine.instrumentation import patches
from stoppable._engine.outgoing import calls
from stoppable._engine.outgoing.calls import BlockingBody, is_stream

_CALL, _SENT = "_stoppable_call", "_stoppable_sent"
"""Attributes of a connection: the request that is under way, and the body that is about to be sent."""


def install(module: ModuleType) -> None:
    """Make the requests of ``http.client`` boundaries."""
    connection = module.HTTPConnection
    patches.put(connection, "request", _request_of)
    patches.put(connection, "putrequest", _putrequest_of)
    patches.put(connection, "send", _send_of)
    patches.put(connection, "getresponse", _getresponse_of)
    patches.put(connection, "close", _close_of)


def install_urllib3(module: ModuleType) -> None:
    """Learn the body of a request, which says the model: urllib3 has a ``request`` of its own."""
    patches.put(module.HTTPConnection, "request", _request_of)


def install_requests(module: ModuleType) -> None:
    """Learn that an answer is read piece by piece: only requests knows what its caller asked for."""
    patches.put(module.Session, "send", _session_send_of)


def _session_send_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        response = original(self, request, **options)
        if options.get("stream"):
            body = getattr(getattr(response.raw, "_original_response", None), "fp", None)
            if isinstance(body, _BodyFile):
                body.end_between_chunks()
        return response

    return send


def _request_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def request(self: Any, method: str, url: str, body: Any = None, *args: Any, **options: Any) -> Any:
        self.__dict__[_SENT] = body
        try:
            return original(self, method, url, body, *args, **options)
        finally:
            self.__dict__.pop(_SENT, None)

    return request


def _putrequest_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def putrequest(self: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        _leave(self)
        call = calls.begin(_label, self, method, url)
        if call is None:
            return original(self, method, url, *args, **options)
        call.holder = None  # until it waits
        self.__dict__[_CALL] = call
        return original(self, method, url, *args, **options)

    return putrequest


def _send_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def send(self: Any, data: Any) -> Any:
        call = self.__dict__.get(_CALL)
        if call is None:
            return original(self, data)
        with calls.blocking(call, lambda: calls.shut_down(self.sock)):
            return original(self, data)

    return send


def _getresponse_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def getresponse(self: Any) -> Any:
        call = self.__dict__.get(_CALL)
        if call is None:
            return original(self)
        connection = self.sock
        with calls.blocking(call, lambda: calls.shut_down(connection)):
            self.__dict__[_CALL] = None  # a connection that is not kept alive is closed before this returns
            response = original(self)
        if response.fp is None:
            call.leave()
        else:
            is_plain = not is_stream(response.getheader("content-type"))
            response.fp = _BodyFile(response.fp, self, connection, call, is_plain=is_plain)
        return response

    return getresponse


def _close_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def close(self: Any) -> Any:
        _leave(self)
        return original(self)

    return close


def _leave(connection: Any) -> None:
    call = connection.__dict__.pop(_CALL, None)
    if call is not None:
        call.leave(sys.exception())


def _label(connection: Any, method: str, url: str) -> tuple[str, calls.Label]:
    host, port, default = connection.host, connection.port, connection.default_port
    if not url.startswith("/"):  # sent to a proxy
        parts = urlsplit(url)
        host, port, url = parts.hostname or host, parts.port, parts.path
    elif getattr(connection, "_tunnel_host", None):
        host, port = connection._tunnel_host, connection._tunnel_port
    place = host if port in (None, default, 443) else f"{host}:{port}"
    return host, calls.request_label(method, place, url, connection.__dict__.get(_SENT))


class _BodyFile:
    """The file that an answer is read from; each read is a part of the run."""

    def __init__(
        self, file: Any, connection: Any, sock: socket.socket, call: calls.OutgoingCall, *, is_plain: bool
    ) -> None:
        self._file = file
        self._connection = connection
        self._answer = call.answer
        source, cut = _ConnectionCloser(file, connection), lambda: calls.shut_down(sock)
        self._body = BlockingBody(source, call, finish=is_plain, cut=cut)

    def end_between_chunks(self) -> None:
        """Treat the body as a stream, whatever its type says."""
        self._body._finish = False

    def read(self, *args: Any) -> Any:
        data = self._body.read(self._file.read, *args)
        self._keep(data)
        return data

    def read1(self, *args: Any) -> Any:
        data = self._body.read(self._file.read1, *args)
        self._keep(data)
        return data

    def readinto(self, buffer: Any) -> Any:
        count = self._body.read(self._file.readinto, buffer)
        if self._answer is not None and count:
            self._keep(bytes(memoryview(buffer)[:count]))
        return count

    def readline(self, *args: Any) -> Any:
        return self._body.read(self._file.readline, *args)  # the length of a chunk, which is no text

    def peek(self, *args: Any) -> Any:
        return self._body.read(self._file.peek, *args)

    def _keep(self, data: bytes) -> None:
        if self._answer is not None and data and data != b"\r\n":  # the end of a chunk
            self._answer.add(data)

    def close(self) -> None:
        """Close it: ``http.client`` does so as soon as the answer was read."""
        self._body.end()
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _ConnectionCloser:
    """Closes an answer that was not read to its end; its connection cannot be used again."""

    def __init__(self, file: Any, connection: Any) -> None:
        self._file = file
        self._connection = connection

    def close(self) -> None:
        self._connection.close()
        self._file.close()
