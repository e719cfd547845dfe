"""A client that is imported fast, for commands that send one or two requests."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from stoppable.client._sync.calls import Calls
from stoppable.client.call_plans import (
    Disconnected,
    HttpRequest,
    HttpResponse,
    authorization,
    encode,
    explain,
    headers_of,
)
from stoppable.client.server_answers import Change
from stoppable.records import Event

if TYPE_CHECKING:
    from stoppable.client import Client


class HttpClient(Calls):
    """Sends requests to a server on this machine with ``http.client``: importing httpx takes longer than a stop.

    Each request opens a new connection. ``events`` and ``changes`` use a ``Client``.
    """

    def __init__(self, url: str, *, timeout: float = 10.0, retry_seconds: float = 15.0) -> None:
        super().__init__(url, timeout, retry_seconds)
        self._key = authorization(None)
        self._retry_seconds = retry_seconds

    def close(self) -> None:
        """Do nothing: no connection is kept."""

    def events(self, run_id: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        with self._client() as client:
            yield from client.events(run_id, after)

    def changes(self, after: int | None = None) -> Iterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        with self._client() as client:
            yield from client.changes(after)

    def _client(self) -> Client:
        from stoppable.client import Client  # noqa: PLC0415 - see above

        return Client(self.url, timeout=self._timeout, retry_seconds=self._retry_seconds)

    def _send(self, request: HttpRequest, seconds: float) -> HttpResponse:
        base = urlsplit(self.url)
        assert base.hostname is not None, "it was checked"
        path = base.path + request.path + (f"?{urlencode(request.params)}" if request.params else "")
        body = None if request.body is None else encode(request.body)
        headers = {**self._key, **headers_of(request)}
        connection = http.client.HTTPConnection(base.hostname, base.port, timeout=seconds)
        try:
            connection.connect()
            connection.sock.settimeout(seconds + request.patience)
            connection.request(request.method, path, body, headers)  # type: ignore[arg-type]  # bytes are headers too
            answer = connection.getresponse()
            return HttpResponse(status=answer.status, content=answer.read(), headers=dict(answer.getheaders()))
        except (OSError, http.client.HTTPException) as error:
            raise Disconnected(explain(error)) from error
        finally:
            connection.close()
