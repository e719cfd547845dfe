"""The calls of a blocking client, whatever sends its requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stoppable._core.ids import new_id
from stoppable._core.policy import Limits, Policy
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.client.agents import AgentInfo
from stoppable.client.calls import Calls, Disconnected, Plan, Request, Response, StartOptions, Wanted
from stoppable.client.changes import Change
from stoppable.client.runs import LAST_WORD_SECONDS, ClientRun, left_because, may_have_started, pause
from stoppable.client.settings import server_url
from stoppable.records import AuditEntry, Event, Hold, RunRecord, RunSummary, Selector, Summaries

if TYPE_CHECKING:
    from stoppable.supervisor.selection import BulkStop

T = TypeVar("T")


class BlockingCalls:
    """Starts, stops and reads runs of a server; a subclass sends the requests and follows streams."""

    def __init__(self, url: str | None, timeout: float, retry_seconds: float) -> None:
        self.url: str = server_url(url)
        self._timeout = timeout
        self._calls = Calls(self.url, retry_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; runs go on."""
        raise NotImplementedError

    def events(self, run_id: str, after: int = 0) -> Iterator[Event]:
        """Yield the events of a run after a sequence number until it ends, each once; reconnects if needed."""
        raise NotImplementedError

    def changes(self, after: int | None = None) -> Iterator[Change]:
        """Yield changes of all runs, from now on or after a place, without end; reconnects if the connection fails."""
        raise NotImplementedError

    def _send(self, request: Request, timeout: float) -> Response:
        """Send a request once and return the answer, or raise Disconnected."""
        raise NotImplementedError

    def _do(self, plan: Plan[T], timeout: float | None = None) -> T:
        try:
            step = next(plan)
            while True:
                if not isinstance(step, Request):
                    pause(step)
                    step = next(plan)
                    continue
                try:
                    response = self._send(step, self._timeout if timeout is None else timeout)
                except Disconnected as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(response)
        except StopIteration as end:
            answer: T = end.value
            return answer

    # Starting

    def start(
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
    ) -> ClientRun:
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
        record = self._do(self._calls.start(agent, input, options))
        return ClientRun(self, record.id, record)

    def handle(self, run_id: str) -> ClientRun:
        """Return a handle of any run of the server; does not check that the run exists."""
        return ClientRun(self, run_id)

    @contextlib.contextmanager
    def run(
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
    ) -> Iterator[ClientRun]:
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
            record = self._do(self._calls.start(agent, input, options))
        except BaseException as error:
            if may_have_started(error):
                self._stop_left(options.run_id, error, if_unknown_hold=True)
            raise
        try:
            yield ClientRun(self, record.id, record)
        except BaseException as error:  # a cancel too
            self._stop_left(options.run_id, error)
            raise

    def _stop_left(self, run_id: str, error: BaseException, *, if_unknown_hold: bool = False) -> None:
        stop = Calls(self.url, LAST_WORD_SECONDS).stop(
            run_id, Mode.GRACEFUL, left_because(error), None, None, if_unknown_hold=if_unknown_hold
        )
        try:
            self._do(stop, LAST_WORD_SECONDS)
        except Exception as unheard:
            error.add_note(f"run {run_id} could not be stopped: {unheard or type(unheard).__name__}")

    # Stopping

    def stop(
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
        return self._do(self._calls.stop(run_id, mode, reason, grace, wait, if_unknown_hold=if_unknown_hold))

    def stop_where(
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
        return self._do(call)

    def holds(self) -> tuple[Hold, ...]:
        """Return the holds that are in force."""
        return self._do(self._calls.holds())

    def release(self, hold_id: str) -> None:
        """Remove a hold, so that new runs are allowed again."""
        self._do(self._calls.release(hold_id))

    # Looking

    def get(self, run_id: str) -> RunRecord:
        """Return the record of a run, or raise RunNotFound."""
        return self._do(self._calls.get(run_id))

    def receipt(self, run_id: str) -> Receipt | None:
        """Return the receipt of the stops of a run so far, or None if it was not stopped."""
        return self._do(self._calls.receipt(run_id))

    def tree(self, run_id: str) -> tuple[RunSummary, ...]:
        """Return a run and all its descendants, parents before children."""
        return self._do(self._calls.tree(run_id))

    def list(
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
        return self._do(self._calls.list(wanted))

    def agents(self) -> tuple[str, ...]:
        """Return the names of the agents that can be started."""
        return self._do(self._calls.agents())

    def agent_infos(self) -> tuple[AgentInfo, ...]:
        """Return the agents that can be started, with their descriptions and input schemas."""
        return self._do(self._calls.agent_infos())

    def audit(self, after: int = 0, limit: int = 100) -> tuple[AuditEntry, ...]:
        """Return the audit: who stopped, held and released what."""
        return self._do(self._calls.audit(after, limit))
