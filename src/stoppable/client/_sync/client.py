# Made from ../_async/client.py by `make twins`: change that file, not this one.
"""The client of a server."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import httpx

from stoppable.client._sync.calls import Calls
from stoppable.client._sync.primitives import pause
from stoppable.client.call_plans import Disconnected, HttpRequest, HttpResponse, explain
from stoppable.client.httpx_options import httpx_options, request_options, stream_options
from stoppable.client.server_answers import Change
from stoppable.client.sse_cursor import ChangesCursor, RunCursor
from stoppable.records import Event


class Client(Calls):
    """Starts, stops and follows runs of a server.

    If a connection fails, requests are sent again for ``retry_seconds``; the server does nothing twice. The default
    URL is STOPPABLE_URL or the local server, the default key STOPPABLE_API_KEY.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry_seconds: float = 15.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, timeout, retry_seconds)
        self._http = httpx.Client(**httpx_options(self.url, api_key, timeout), transport=transport)

    def close(self) -> None:
        """Close the connections; runs go on."""
        self._http.close()

    def _send(self, request: HttpRequest, seconds: float) -> HttpResponse:
        try:
            response = self._http.request(**request_options(request, seconds))
        except httpx.RequestError as error:
            raise Disconnected(explain(error)) from error
        return HttpResponse(status=response.status_code, content=response.content, headers=response.headers)

    def events(self, run_id: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        cursor = RunCursor(self._plans, run_id, after)
        while True:
            try:
                with self._http.stream(**stream_options(cursor.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        cursor.on_open()
                        # To its end, which follows the last event: a generator of httpx that is left in the middle is
                        # closed by a separate task, and the loop may end before that.
                        for data in response.iter_bytes():
                            for event in cursor.feed(data):
                                yield event
                    else:
                        cursor.on_refusal(response.status_code, response.read())
            except httpx.RequestError as error:
                cursor.on_error(explain(error))
            else:
                if cursor.done or (cursor.is_quiet and not cursor.is_behind(self.get(run_id))):
                    return
            pause(cursor.pause())

    def changes(self, after: int | None = None) -> Iterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        cursor = ChangesCursor(self._plans, after)
        while True:
            try:
                with self._http.stream(**stream_options(cursor.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        cursor.on_open()
                        for data in response.iter_bytes():
                            for change in cursor.feed(data):
                                yield change
                    else:
                        cursor.on_refusal(response.status_code, response.read())
            except httpx.RequestError as error:
                cursor.on_error(explain(error))
            pause(cursor.pause())
