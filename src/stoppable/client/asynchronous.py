"""The async client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from stoppable._core.ids import new_id
from stoppable._core.policy import Limits, Policy
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.client.agents import AgentInfo
from stoppable.client.calls import Calls, Disconnected, Plan, Request, Response, StartOptions, Wanted
from stoppable.client.changes import Change
from stoppable.client.following import Following, FollowingAll
from stoppable.client.httpx_options import httpx_options, request_options, stream_options
from stoppable.client.runs import LAST_WORD_SECONDS, AsyncClientRun, left_because, may_have_started
from stoppable.client.settings import explained, server_url
from stoppable.records import AuditEntry, Event, Hold, RunRecord, RunSummary, Selector, Summaries
from stoppable.supervisor.selection import BulkStop

T = TypeVar("T")


class AsyncClient:
    """Starts, stops and follows runs of a server, from async code.

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url: str = server_url(url)
        self._timeout = timeout
        self._calls = Calls(self.url, retry_seconds)
        self._http = httpx.AsyncClient(**httpx_options(self.url, api_key, timeout), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; runs go on."""
        await self._http.aclose()

    async def _do(self, plan: Plan[T]) -> T:
        try:
            step = next(plan)
            while True:
                if not isinstance(step, Request):
                    await asyncio.sleep(step)
                    step = next(plan)
                    continue
                try:
                    reply = await self._send(step)
                except Disconnected as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(reply)
        except StopIteration as end:
            answer: T = end.value
            return answer

    async def _send(self, request: Request) -> Response:
        try:
            response = await self._http.request(**request_options(request, self._timeout))
        except httpx.RequestError as error:
            raise Disconnected(explained(error)) from error
        return Response(status=response.status_code, content=response.content, headers=response.headers)

    # Starting

    async def start(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - its name on the wire
        *,
        run_id: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        isolation: str | None = None,
        on_disconnect: str | None = None,
    ) -> AsyncClientRun:
        """Start an agent of the server and return a handle of the run; the run goes on even if the handle is dropped.

        Raises RunHeld while a hold matches it, and RunConflict if the id is taken.
        """
        options = StartOptions(
            run_id=run_id or new_id(),
            owner=owner,
            labels=labels,
            key=key,
            limits=limits,
            policy=policy,
            isolation=isolation,
            on_disconnect=on_disconnect,
        )
        record = await self._do(self._calls.start(agent, input, options))
        return AsyncClientRun(self, record.id, record)

    def handle(self, run_id: str) -> AsyncClientRun:
        """Return a handle of any run of the server; does not check that the run exists."""
        return AsyncClientRun(self, run_id)

    @contextlib.asynccontextmanager
    async def run(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - as above
        *,
        run_id: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        key: str | None = None,
        limits: Limits | None = None,
        policy: Policy | None = None,
        isolation: str | None = None,
        on_disconnect: str | None = None,
    ) -> AsyncIterator[AsyncClientRun]:
        """Start a run for a block; an exception that leaves the block stops the run, otherwise it goes on."""
        options = StartOptions(
            run_id=run_id or new_id(),
            owner=owner,
            labels=labels,
            key=key,
            limits=limits,
            policy=policy,
            isolation=isolation,
            on_disconnect=on_disconnect,
        )
        try:
            record = await self._do(self._calls.start(agent, input, options))
        except BaseException as error:
            if may_have_started(error):
                await self._stop_left(options.run_id, error, if_unknown_hold=True)
            raise
        try:
            yield AsyncClientRun(self, record.id, record)
        except BaseException as error:  # a cancel too
            await self._stop_left(options.run_id, error)
            raise

    async def _stop_left(self, run_id: str, error: BaseException, *, if_unknown_hold: bool = False) -> None:
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self.stop(run_id, reason=left_because(error), if_unknown_hold=if_unknown_hold)
        except Exception as unheard:
            error.add_note(f"run {run_id} could not be stopped: {unheard or type(unheard).__name__}")

    # Stopping

    async def stop(
        self,
        run_id: str,
        mode: str = Mode.GRACEFUL,
        reason: str | None = None,
        *,
        grace: float | None = None,
        wait: float | None = None,
        if_unknown_hold: bool = False,
    ) -> Receipt:
        """Stop a run and its subtree; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end.
        """
        return await self._do(self._calls.stop(run_id, mode, reason, grace, wait, if_unknown_hold=if_unknown_hold))

    async def stop_where(
        self,
        *,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        agent: str | None = None,
        key: str | None = None,
        all: bool = False,  # noqa: A002 - reads as what it means
        mode: str = Mode.GRACEFUL,
        reason: str | None = None,
        grace: float | None = None,
        hold: bool = False,
        dry_run: bool = False,
        wait: float | None = None,
        if_unknown_hold: bool | None = None,
        idempotency_key: str | None = None,
    ) -> BulkStop:
        """Stop every run that matches all given criteria; ``dry_run`` only lists them, ``hold`` also refuses new ones.

        With a ``key`` it stops a conversation: its live runs or, if it has had none and ``if_unknown_hold`` is not
        False, the first one; with True also the next one, if it starts within seconds. With ``wait`` it waits up to
        that many seconds until all have ended.
        """
        selector = Selector(owner=owner, labels=labels or {}, name=agent, key=key, all=all)
        call = self._calls.stop_where(
            selector,
            mode,
            reason,
            grace,
            idempotency_key,
            wait,
            hold=hold,
            dry_run=dry_run,
            if_unknown_hold=if_unknown_hold,
        )
        return await self._do(call)

    async def holds(self) -> tuple[Hold, ...]:
        """Return the holds that are in force."""
        return await self._do(self._calls.holds())

    async def release(self, hold_id: str) -> None:
        """Remove a hold, so that new runs are allowed again."""
        await self._do(self._calls.release(hold_id))

    # Looking

    async def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return await self._do(self._calls.get(run_id))

    async def receipt(self, run_id: str) -> Receipt | None:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        return await self._do(self._calls.receipt(run_id))

    async def tree(self, run_id: str) -> tuple[RunSummary, ...]:
        """Return a run and all its descendants, parents before children."""
        return await self._do(self._calls.tree(run_id))

    async def list(
        self,
        *,
        status: Sequence[Status | str] = (),
        agent: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        key: str | None = None,
        roots: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Summaries:
        """Return a page of summaries of the matching runs, newest first, and the cursor of the next page."""
        wanted = Wanted(
            status=status,
            agent=agent,
            owner=owner,
            labels=labels or {},
            parent=parent,
            key=key,
            roots=roots,
            cursor=cursor,
            limit=limit,
        )
        return await self._do(self._calls.list(wanted))

    async def agents(self) -> tuple[str, ...]:
        """Return the names of the agents that can be started."""
        return await self._do(self._calls.agents())

    async def agent_infos(self) -> tuple[AgentInfo, ...]:
        """Return the agents that can be started, with their descriptions and input schemas."""
        return await self._do(self._calls.agent_infos())

    async def audit(self, after: int = 0, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Return the audit: who stopped, held and released what."""
        return await self._do(self._calls.audit(after, limit))

    async def events(self, run_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        following = Following(self._calls, run_id, after)
        while True:
            try:
                async with self._http.stream(**stream_options(following.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        following.opened()
                        # To its end, which follows the last event: a generator of httpx that is left in the middle is
                        # closed by a separate task, and the loop may end before that.
                        async for data in response.aiter_bytes():
                            for event in following.feed(data):
                                yield event
                    else:
                        following.refused(response.status_code, await response.aread())
            except httpx.RequestError as error:
                following.broke(explained(error))
            else:
                if following.done or (following.is_quiet and not following.is_behind(await self.get(run_id))):
                    return
            await asyncio.sleep(following.pause())

    async def changes(self, after: int | None = None) -> AsyncIterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        following = FollowingAll(self._calls, after)
        while True:
            try:
                async with self._http.stream(**stream_options(following.request(), self._timeout)) as response:
                    if response.status_code == HTTPStatus.OK:
                        following.opened()
                        async for data in response.aiter_bytes():
                            for change in following.feed(data):
                                yield change
                    else:
                        following.refused(response.status_code, await response.aread())
            except httpx.RequestError as error:
                following.broke(explained(error))
            await asyncio.sleep(following.pause())
