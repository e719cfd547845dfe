"""The blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import httpx

from stoppable.client.blocking_calls import BlockingCalls
from stoppable.client.calls import Disconnected, Request, Response
from stoppable.client.changes import Change
from stoppable.client.following import Following, FollowingAll
from stoppable.client.httpx_options import httpx_options, request_options, stream_options
from stoppable.client.runs import pause
from stoppable.client.settings import explained
from stoppable.records import Event


class Client(BlockingCalls):
    """Starts, stops and follows runs of a server, from blocking code.

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

    def _send(self, request: Request, timeout: float) -> Response:
        try:
            response = self._http.request(**request_options(request, timeout))
        except httpx.RequestError as error:
            raise Disconnected(explained(error)) from error
        return Response(status=response.status_code, content=response.content, headers=response.headers)

    def events(self, run_id: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        following = Following(self._calls, run_id, after)
        while True:
            try:
                with self._http.stream(**stream_options(following.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        following.opened()
                        for data in response.iter_bytes():
                            yield from following.feed(data)
                            if following.done:
                                return
                    else:
                        following.refused(response.status_code, response.read())
            except httpx.RequestError as error:
                following.broke(explained(error))
            else:
                if following.done or (following.is_quiet and not following.is_behind(self.get(run_id))):
                    return
            pause(following.pause())

    def changes(self, after: int | None = None) -> Iterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        following = FollowingAll(self._calls, after)
        while True:
            try:
                with self._http.stream(**stream_options(following.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        following.opened()
                        for data in response.iter_bytes():
                            yield from following.feed(data)
                    else:
                        following.refused(response.status_code, response.read())
            except httpx.RequestError as error:
                following.broke(explained(error))
            pause(following.pause())
