"""The calls of a client, whatever sends its requests, and the handles of runs that they return."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from stoppable._core.stop import Receipt
from stoppable._core.values import Limits, Mode, Policy, Status, new_id
from stoppable.client._async.primitives import pause, time_limit, wait_at_most
from stoppable.client.call_plans import (
    CallPlans,
    Disconnected,
    HttpRequest,
    HttpResponse,
    ListQuery,
    Plan,
    StartRequest,
    server_url,
)
from stoppable.client.server_answers import (
    STOP_ON_EXIT_SECONDS,
    AgentInfo,
    Change,
    left_because,
    may_have_started,
    result_of,
)
from stoppable.records import (
    AuditEntry,
    BulkStop,
    Event,
    Hold,
    IfUnknown,
    OutcomeRecord,
    RunRecord,
    RunSummary,
    Selector,
    Summaries,
)


class AsyncClientRun:
    """A run of a server: what ``start`` and ``handle`` of an ``AsyncClient`` return."""

    def __init__(self, client: AsyncCalls, run_id: str, record: RunRecord | None = None) -> None:
        self._client = client
        self._id = run_id
        self._record = record

    @property
    def id(self) -> str:
        """The id of the run on the server."""
        return self._id

    @property
    def last_record(self) -> RunRecord | None:
        """The record that the server sent last, without asking again; after a start, the record of the new run."""
        return self._record

    async def stop(
        self,
        mode: str = Mode.GRACEFUL,
        reason: str | None = None,
        *,
        grace: float | None = None,
        wait: float | None = None,
    ) -> Receipt:
        """Stop the run and its subtree; with ``wait``, wait up to that many seconds for the end."""
        return await self._client.stop(self.id, mode, reason, grace=grace, wait=wait)

    def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of the run, past and live, until it ends."""
        return self._client.events(self.id, after)

    async def record(self) -> RunRecord:
        """Return the record of the run, or raise RunNotFound."""
        self._record = await self._client.get(self.id)
        return self._record

    async def receipt(self) -> Receipt | None:
        """Return the receipt of its stops so far, or None if it was not stopped."""
        return await self._client.receipt(self.id)

    async def wait(self, seconds: float | None = None) -> RunRecord:
        """Wait for the end, at most that many seconds, and return the record; ``over`` says if the run has ended."""
        return await wait_at_most(seconds, self._wait_for_end, self.record)

    async def outcome(self) -> OutcomeRecord:
        """Wait for the end and return it; never raises because the run was stopped."""
        outcome = (await self._wait_for_end()).outcome
        assert outcome is not None, "it is over"
        return outcome

    async def result(self) -> Any:
        """Wait for the end and return the value, or raise RunStopped, RunFailed or RunLost."""
        return result_of(await self._wait_for_end())

    async def _wait_for_end(self) -> RunRecord:
        record = self._record or await self.record()
        if not record.over:
            async for _ in self.events(record.last_event):
                pass
            record = await self.record()
        return record

    def __repr__(self) -> str:
        return f"<AsyncClientRun {self.id}>"


T = TypeVar("T")


class AsyncCalls:
    """Starts, stops and reads runs of a server; a subclass sends the requests and follows streams."""

    def __init__(self, url: str | None, timeout: float, retry_seconds: float) -> None:
        self.url: str = server_url(url)
        self._timeout = timeout
        self._plans = CallPlans(self.url, retry_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; runs go on."""
        raise NotImplementedError

    def events(self, run_id: str, after: int = 0) -> AsyncIterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        raise NotImplementedError

    def changes(self, after: int | None = None) -> AsyncIterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        raise NotImplementedError

    async def _send(self, request: HttpRequest, seconds: float) -> HttpResponse:
        """Send a request once and return the answer, or raise Disconnected."""
        raise NotImplementedError

    async def _do(self, plan: Plan[T], seconds: float | None = None) -> T:
        try:
            step = next(plan)
            while True:
                if not isinstance(step, HttpRequest):
                    await pause(step)
                    step = next(plan)
                    continue
                try:
                    response = await self._send(step, self._timeout if seconds is None else seconds)
                except Disconnected as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(response)
        except StopIteration as end:
            answer: T = end.value
            return answer

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
        options = StartRequest(
            run_id=run_id or new_id(),
            owner=owner,
            labels=labels,
            key=key,
            limits=limits,
            policy=policy,
            isolation=isolation,
            on_disconnect=on_disconnect,
        )
        record = await self._do(self._plans.start(agent, input, options))
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
        options = StartRequest(
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
            record = await self._do(self._plans.start(agent, input, options))
        except BaseException as error:
            if may_have_started(error):
                await self._stop_left(options.run_id, error, if_unknown="wait")
            raise
        try:
            yield AsyncClientRun(self, record.id, record)
        except BaseException as error:  # a cancel too
            await self._stop_left(options.run_id, error)
            raise

    async def _stop_left(self, run_id: str, error: BaseException, *, if_unknown: IfUnknown = None) -> None:
        stop = CallPlans(self.url, STOP_ON_EXIT_SECONDS).stop(
            run_id, Mode.GRACEFUL, left_because(error), None, None, if_unknown=if_unknown
        )
        try:
            async with time_limit(STOP_ON_EXIT_SECONDS):
                await self._do(stop, STOP_ON_EXIT_SECONDS)
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
        if_unknown: IfUnknown = None,
    ) -> Receipt:
        """Stop a run and its subtree; when this returns, the stop is in the store (G14).

        With ``wait`` it waits up to that many seconds for the end.
        """
        return await self._do(self._plans.stop(run_id, mode, reason, grace, wait, if_unknown=if_unknown))

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
        if_unknown: IfUnknown = None,
        idempotency_key: str | None = None,
    ) -> BulkStop:
        """Stop every run that matches all given criteria; ``dry_run`` only lists them, ``hold`` also refuses new ones.

        With a ``key`` it stops a conversation: its live runs or, if it has had none and ``if_unknown`` is not
        False, the first one; with True also the next one, if it starts within seconds. With ``wait`` it waits up to
        that many seconds until all have ended.
        """
        selector = Selector(owner=owner, labels=labels or {}, agent=agent, key=key, all=all)
        call = self._plans.stop_where(
            selector,
            mode,
            reason,
            grace,
            idempotency_key,
            wait,
            hold=hold,
            dry_run=dry_run,
            if_unknown=if_unknown,
        )
        return await self._do(call)

    async def holds(self) -> tuple[Hold, ...]:
        """Return the holds that are in force."""
        return await self._do(self._plans.holds())

    async def release(self, hold_id: str) -> None:
        """Remove a hold, so that new runs are allowed again."""
        await self._do(self._plans.release(hold_id))

    # Looking

    async def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return await self._do(self._plans.get(run_id))

    async def receipt(self, run_id: str) -> Receipt | None:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        return await self._do(self._plans.receipt(run_id))

    async def tree(self, run_id: str) -> tuple[RunSummary, ...]:
        """Return a run and all its descendants, parents before children."""
        return await self._do(self._plans.tree(run_id))

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
        query = ListQuery(
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
        return await self._do(self._plans.list(query))

    async def agents(self) -> tuple[str, ...]:
        """Return the names of the agents that can be started."""
        return await self._do(self._plans.agents())

    async def agent_infos(self) -> tuple[AgentInfo, ...]:
        """Return the agents that can be started, with their descriptions and input schemas."""
        return await self._do(self._plans.agent_infos())

    async def audit(self, after: int = 0, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Return the audit: who stopped, held and released what."""
        return await self._do(self._plans.audit(after, limit))
