"""What the protocols of a server share: a conversation is a key, a turn is a run, and a cancel is a stop.

A protocol adds how its requests, events and errors are spelled. Every stream of it is a reading of the log, which can
be repeated from the start with the same result, so a protocol can derive its own places to resume from.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from stoppable._core.stop import Receipt
from stoppable._core.values import Mode, Policy, Reason, ReasonKind, new_id
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType, Filter, RunRecord, RunSummary
from stoppable.server.access import Principal, Scope, problem_for, visible_receipt, visible_record
from stoppable.server.backend import Host
from stoppable.server.hosted_agents import Registry, Signature
from stoppable.server.responses import Problem, dumps, one_line, problem_of_validation
from stoppable.server.schemas import StopBody
from stoppable.server.sse.feeds import LogView, RunView, TreeView
from stoppable.server.sse.streams import EventStream, TranslatedView
from stoppable.server.surfaces.ends import End, Said
from stoppable.stores.base import Store
from stoppable.supervisor import Prepared, StartOptions

_logger = logging.getLogger("stoppable.server")

POLICY = Policy(grace=2.0, interrupt=0.25, cancel=1.0, kill=0.5, blind_grace=0.0)
"""Four seconds in total, so that a client with a timeout of five sees the end; a blind run is cancelled at once."""

_LONGEST_STOP = 300.0
_BEYOND = 2**53  # no store has so many events
_MARGIN = 0.5  # for what is written after the last rung
_NEWS = 1.0  # that a client has left may be read after the next request of it, which comes by another connection
_BUSY = 10.0  # on a busy machine a ladder takes longer: the time of a rung counts while what it waits for can act


class Surface:
    """The agents of a server, for one protocol."""

    def __init__(self, host: Host, protocol: str, policy: Policy = POLICY) -> None:
        self.protocol: str = protocol
        self._backend = host._backend  # a surface is a part of the server
        self._policy = policy
        self._starting: dict[tuple[str | None, str], asyncio.Event] = {}
        self._attended: dict[str, asyncio.Event] = {}  # the ends of streams that stop their runs
        self._leaving: dict[str, asyncio.Task[None]] = {}  # the runs whose clients have left
        self._queues: WeakValueDictionary[tuple[str | None, str], asyncio.Lock] = WeakValueDictionary()
        self._queued: set[asyncio.Task[None]] = set()

    @property
    def agents(self) -> Registry:
        """The agents that can be started."""
        return self._backend.registry

    def signature(self, agent: str) -> Signature:
        """Return the parameters of an agent, or raise a 404."""
        return self._backend.registry.signature(agent)

    # Conversations

    def key(self, conversation: str) -> str:
        """Return the key of the runs of a conversation."""
        return f"{self.protocol}:{conversation}"

    def conversation(self, record: RunRecord) -> str:
        """Return the conversation that a run is a turn of: its own, if it has no key."""
        return record.id if record.key is None else record.key.removeprefix(f"{self.protocol}:")

    # Turns

    async def begin(
        self,
        caller: Principal,
        agent: str,
        arguments: Any = None,
        *,
        make_arguments: Callable[[], Awaitable[Any]] | None = None,
        run_id: str | None = None,
        after: RunRecord | None = None,
        conversation: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> RunRecord:
        """Start a turn: the one after another, or one of a conversation, or alone.

        ``make_arguments`` returns the arguments instead; it is called once the turn before has ended.
        """
        owner, key = caller.owner, None if conversation is None else self.key(conversation)
        if after is not None:
            owner, key = after.owner, after.key or self.key(after.id)
        options = self._options(agent, owner, key, run_id, labels)
        async with self._alone(key, owner):
            if make_arguments is not None:
                arguments = await make_arguments()
            started, _ = await self._backend.start(agent, arguments, options)
        return await self._backend.supervisor.get(started)

    async def queue(
        self,
        caller: Principal,
        agent: str,
        arguments: Any,
        *,
        run_id: str,
        conversation: str,
        labels: Mapping[str, str],
        metadata: Mapping[str, Any],
        decide: Callable[[Sequence[RunSummary]], Awaitable[object]],
        complete: Callable[[], Awaitable[object]],
    ) -> RunRecord:
        """Start a turn of a conversation when the others have ended; until then it is pending, and a stop ends it.

        ``decide`` gets the turns that have not ended, newest first; it may stop them, or refuse the new one.
        ``complete`` is called once they have ended, and may change the arguments in place.
        """
        owner, key = caller.owner, self.key(conversation)
        options = self._options(agent, owner, key, run_id, labels)
        options["metadata"] = metadata
        lock = self._queues.setdefault((owner, key), asyncio.Lock())  # kept as long as somebody waits for it
        async with lock:
            live = [run for run in await self._backend.supervisor.find(key, owner=owner) if run.owner == owner]
            await decide(live)
            if not live:
                await complete()
            prepared = await self._backend.prepare(agent, arguments, options)
            if prepared.is_new and live:
                prepared.queue()
                task = asyncio.create_task(self._launch_after(live, prepared, complete))
                self._queued.add(task)
                task.add_done_callback(self._queued.discard)
            elif prepared.is_new:
                self._backend.launch(prepared)
        return await self._backend.supervisor.get(prepared.id)

    async def _launch_after(
        self, others: Sequence[RunSummary], prepared: Prepared[Any], complete: Callable[[], Awaitable[object]]
    ) -> None:
        try:
            for other in others:
                await self._backend.supervisor.handle(other.id).outcome()
            await complete()
        except Exception as error:  # whatever it is, a run that never begins must end
            _logger.warning("run %s waited for others, but could not begin: %s", prepared.id, error)
            prepared.abandon(f"it could not begin: {error}")
        else:
            self._backend.launch(prepared)

    def _options(
        self, agent: str, owner: str | None, key: str | None, run_id: str | None, labels: Mapping[str, str] | None
    ) -> StartOptions:
        bounds = self._backend.limits
        return StartOptions(
            name=agent,
            owner=owner,
            labels=labels,
            run_id=run_id or new_id(),
            key=key,
            limits=bounds.limits(None),
            policy=bounds.policy(self._policy),
        )

    async def last_turn(self, conversation: str, owner: str | None) -> RunRecord | None:
        """Return the newest turn of a conversation; None if it has none, or only turns of other owners."""
        page = await self._backend.supervisor.list(Filter(key=self.key(conversation), owner=owner, roots=True))
        newest = next((run.id for run in page.runs if run.owner == owner), None)
        return None if newest is None else await self._backend.supervisor.get(newest)

    async def wait_for_start(self, conversation: str, owner: str | None) -> None:
        """Wait for the turn of a conversation that is being started here, if there is one: a stop may be for that."""
        if (start := self._starting.get((owner, self.key(conversation)))) is not None:
            await start.wait()  # set in any case, also if the start fails

    @contextlib.asynccontextmanager
    async def _alone(self, key: str | None, owner: str | None) -> AsyncIterator[None]:
        """Start a turn when no other of its conversation is at work: two at once would write into one history."""
        if key is None:
            yield
            return
        if (owner, key) in self._starting:
            raise Problem(409, "conversation_busy", "another turn of this conversation is being started")
        start = self._starting[owner, key] = asyncio.Event()
        try:
            await self._settle(key, owner)
            yield
        finally:
            del self._starting[owner, key]
            start.set()

    async def _settle(self, key: str, owner: str | None) -> None:
        """Wait for the turns of a conversation that are being stopped, and refuse one beside a turn that is not."""
        for run in await self._backend.supervisor.find(key, owner=owner):
            if run.owner != owner:
                continue
            if run.mode is not None or await self._is_left(run.id):  # its status may be written later
                seconds = self._policy.total(Mode.GRACEFUL) + _MARGIN
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._backend.supervisor.handle(run.id).outcome()
                        continue
            message = f"run {run.id} of this conversation is at work: stop it, or wait for its end"
            raise Problem(409, "conversation_busy", message)

    async def _is_left(self, run_id: str) -> bool:
        """Return whether the stream of a turn has ended, which may be about to be known."""
        end = self._attended.get(run_id)
        if end is None or run_id in self._leaving:
            return run_id in self._leaving
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NEWS):
                await end.wait()
        return end.is_set()

    async def record(self, run_id: str, caller: Principal) -> RunRecord:
        """Return what is kept of a turn; RunNotFound if it is unknown, or not the caller's."""
        record = await self._backend.record(run_id, caller)
        return await visible_record(self._backend.supervisor, caller, record)

    async def stop(self, request: Request, record: RunRecord, caller: Principal, message: str) -> RunRecord:
        """Stop a turn, wait for the end of the ladder at most, and return its record.

        It is always the graceful mode, so a repeated request never becomes a stronger one.
        """
        reason = Reason.of(message, source=self.protocol)
        seconds = min(record.policy.total(Mode.GRACEFUL) + _BUSY, _LONGEST_STOP)
        with self._backend.shares.wait(caller.owner, request.scope, seconds) as wait:
            await self._backend.supervisor.stop(
                record.id, reason=reason, actor=caller.actor, wait=wait, owner=record.owner
            )
        return await self.record(record.id, caller)

    async def stop_with(
        self, request: Request, record: RunRecord, caller: Principal, options: StopBody, wait: float
    ) -> Receipt:
        """Stop a turn in the mode that its client says, as ``POST /runs/{id}/stop`` does, and return the receipt."""
        with self._backend.shares.wait(caller.owner, request.scope, wait) as seconds:
            receipt = await self._backend.supervisor.stop(
                record.id,
                options.mode,
                Reason.of(options.reason, source=self.protocol),
                caller.actor,
                self._backend.limits.grace(options.grace),
                wait=seconds,
                owner=record.owner,
            )
        return await visible_receipt(self._backend.supervisor, caller, receipt)

    def leave(self, run_id: str, message: str = "the client left") -> None:
        """Stop a turn whose client has left, although the request that it came by is ending."""
        if self._backend.streams.is_draining:
            return  # the shutdown stops it
        reason = Reason.of(message, kind=ReasonKind.DISCONNECT, source=self.protocol)
        task = self._leaving[run_id] = asyncio.create_task(self._stop_left(run_id, reason))
        task.add_done_callback(lambda _: self._leaving.pop(run_id, None))

    async def _stop_left(self, run_id: str, reason: Reason) -> None:
        try:
            await self._backend.supervisor.stop(run_id, reason=reason)
        except StoppableError as error:
            _logger.warning("the client of run %s has left, but the run could not be stopped: %s", run_id, error)

    # What a client sees of it

    async def wait(self, request: Request, record: RunRecord, caller: Principal, *, stops: bool = True) -> RunRecord:
        """Wait for the end of a turn as long as the client of a request does; with ``stops``, leaving stops it."""
        ended = asyncio.ensure_future(self._backend.supervisor.handle(record.id).outcome())
        gone = asyncio.ensure_future(_disconnect(request))
        try:
            await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_over = ended.done() and ended.exception() is None
            if not is_over and stops and may_stop(caller):
                self.leave(record.id)
            gone.cancel()
            if not ended.done():
                ended.cancel()
        if ended.done():
            ended.result()  # or the error of the store
        return await self.record(record.id, caller)

    def stream(
        self, record: RunRecord, caller: Principal, wording: Wording, *, stops: bool, tree_after: int | None = None
    ) -> Response:
        """Return a response that reads the log of a turn to its client; with ``stops``, leaving it stops the turn.

        With ``tree_after``, a place in the store before its start, the runs below it are shown too. Call ``check_room``
        first.
        """

        async def end(said: Said) -> End:
            return End.of(await self.record(record.id, caller), said.text if said.is_generator else None)

        left = self.leave if stops and may_stop(caller) else None
        if tree_after is None:
            view = TurnView(RunView(record), record, wording, self._nothing_said(record), end)
            return _TurnStream(view, self, caller.owner, 0, left)
        tree = TurnTreeView(record, caller.owner, wording, self._nothing_said, end)
        return _TurnStream(tree, self, caller.owner, tree_after, left)

    async def place(self) -> int:
        """Return the place in the store after all that has happened until now."""
        return (await self._backend.supervisor.store.tail(_BEYOND, 1)).place

    def check_room(self, caller: Principal) -> None:
        """Refuse a stream if there are too many, before anything is started for it."""
        self._backend.streams.check_room(caller.owner)

    async def end(self, record: RunRecord) -> End | None:
        """Return the end of a turn, or None if it is at work."""
        if not record.over:
            return None
        said = self._nothing_said(record)
        if not said.is_generator:
            return End.of(record)
        async for event in self._backend.supervisor.events(record.id):
            said.take(event)
        return End.of(record, said.text)

    def _nothing_said(self, record: RunRecord) -> Said:
        return Said(is_generator=self.agents.is_generator(record.name))


def may_stop(caller: Principal) -> bool:
    """Return whether leaving may stop a turn: it must not bypass the scope."""
    return Scope.STOP in caller.scopes


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass  # its client decides how long it waits


class Wording(ABC):
    """How a protocol spells what a client sees of a turn; each stream has its own."""

    @abstractmethod
    def opening(self, record: RunRecord) -> bytes:
        """Return what a stream begins with."""

    async def learn(self, event: Event) -> None:  # noqa: B027 - for those who override it
        """Read what the words for an event need; it is called before they are asked for."""

    @abstractmethod
    def text(self, delta: str) -> bytes:
        """Return a piece of text."""

    def other(self, event: Event) -> bytes:  # noqa: ARG002 - for those who override it
        """Return what is sent for an event that adds no text, also one of a run below the turn."""
        return b""

    def child(self, record: RunRecord) -> bytes:  # noqa: ARG002 - for those who override it
        """Return what is sent for the start of a run below the turn."""
        return b""

    def child_text(self, record: RunRecord, delta: str) -> bytes:  # noqa: ARG002 - for those who override it
        """Return a piece of the text of a run below the turn."""
        return b""

    def child_end(self, record: RunRecord, said: str) -> bytes:  # noqa: ARG002 - for those who override it
        """Return what is sent for the end of a run below the turn; it may be at work when that of the turn has come."""
        return b""

    @abstractmethod
    def end(self, end: End) -> bytes:
        """Return what a stream ends with once the turn has its end; all text of it was sent, if it could be."""

    @abstractmethod
    def broken(self, name: str, message: str) -> bytes:
        """Return what a stream ends with before that, because of a slow client (``dropped``) or a ``shutdown``."""


def data_line(value: Any) -> bytes:
    """Return the event of a stream that is nothing but data."""
    return b"data: %b\n\n" % one_line(dumps(value))


class TurnView(TranslatedView):
    """The log of a turn, in the words of a protocol."""

    __slots__ = ("_end", "_said", "_wording", "has_ended")

    def __init__(
        self, inner: LogView, record: RunRecord, wording: Wording, said: Said, end: Callable[[Said], Awaitable[End]]
    ) -> None:
        super().__init__(inner, wording.opening(record))
        self.stops_run = False  # the stream sees to that, because nobody can come back to it
        self.has_ended: bool = False
        self._wording = wording
        self._end = end
        self._said = said

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a place, once the wording knows what it needs for them."""
        events = await super().events(store, after, limit)
        for _, event in events:
            await self._wording.learn(event)
        return events

    def translate(self, event: Event, place: int) -> bytes:  # noqa: ARG002 - protocols have other places
        """Return the words for an event."""
        delta = self._said.take(event)
        return self._wording.text(delta) if delta else self._wording.other(event)

    async def translate_end(self, store: Store, place: int) -> bytes:  # noqa: ARG002 - it is read with what the caller may see
        """Return the text that is still missing, and the words for the end."""
        end = await self._end(self._said)
        self.has_ended = True
        rest = self._said.missing(end.text)
        return (self._wording.text(rest) if rest else b"") + self._wording.end(end)

    def marker(self, name: str, after: int, text: str) -> bytes:  # noqa: ARG002 - protocols have other places
        """Return the words for an early end of the stream."""
        return self._wording.broken(name, text)


class TurnTreeView(TurnView):
    """The log of a turn and those of the runs below it, in the words of a protocol."""

    __slots__ = ("_children", "_said_by")

    def __init__(
        self,
        record: RunRecord,
        owner: str | None,
        wording: Wording,
        nothing_said: Callable[[RunRecord], Said],
        end: Callable[[Said], Awaitable[End]],
    ) -> None:
        super().__init__(TreeView(record, owner), record, wording, nothing_said(record), end)
        self._said_by = nothing_said
        self._children: dict[str, _Child] = {}

    async def events(self, store: Store, after: int, limit: int) -> Sequence[tuple[int, Event]]:
        """Return the events after a place, and know the runs that they are of."""
        events = await super().events(store, after, limit)
        for _, event in events:
            await self._learn(store, event.run_id)
            if event.type is EventType.DONE and event.run_id != self.run_id:
                self._children[event.run_id].record = await store.get(event.run_id)
        return events

    async def _learn(self, store: Store, run_id: str | None) -> None:
        """Know a run below the turn, and those between the two: a store may have the events of a child first."""
        while run_id is not None and run_id != self.run_id and run_id not in self._children:
            record = await store.get(run_id)
            self._children[run_id] = _Child(record, self._said_by(record))
            run_id = record.parent_id

    def translate(self, event: Event, place: int) -> bytes:
        """Return the words for an event of the turn, or of a run below it."""
        child = self._children.get(event.run_id)
        if child is None:
            return super().translate(event, place)
        if child.has_ended:
            return b""
        chunk = self._show(child)
        if event.type is EventType.DONE:
            return chunk + self._end_child(child)
        delta = child.said.take(event)
        return chunk + (self._wording.child_text(child.record, delta) if delta else self._wording.other(event))

    def _show(self, child: _Child) -> bytes:
        if child.is_shown:
            return b""
        child.is_shown = True
        above = self._children.get(child.record.parent_id or "")
        return (b"" if above is None else self._show(above)) + self._wording.child(child.record)

    def _end_child(self, child: _Child) -> bytes:
        child.has_ended = True
        said, rest = child.said, ""
        if child.record.over and not said.is_generator:
            rest = said.missing(End.of(child.record).said)
        chunk = self._wording.child_text(child.record, rest) if rest else b""
        return chunk + self._wording.child_end(child.record, said.text + rest)

    async def translate_end(self, store: Store, place: int) -> bytes:
        """Return the words for the end, after those for runs below the turn that have not ended before."""
        chunk = b""
        for child in reversed(self._children.values()):
            if child.is_shown and not child.has_ended:
                child.record = await store.get(child.record.id)
                chunk += self._end_child(child)
        return chunk + await super().translate_end(store, place)


@dataclass(slots=True)
class _Child:
    """A run below a turn, as its client knows it."""

    record: RunRecord
    said: Said
    is_shown: bool = False
    has_ended: bool = False


class _TurnStream(EventStream):
    """Sends the log of a turn; with ``left``, calls that if its client does not stay until the end."""

    def __init__(
        self,
        view: TurnView,
        surface: Surface,
        owner: str | None,
        after: int,
        left: Callable[[str], None] | None,
    ) -> None:
        super().__init__(surface._backend.streams, view, after, owner)
        self._turn, self._left = view, left
        self._end, self._attended = asyncio.Event(), surface._attended
        if left is not None:
            self._attended[view.run_id] = self._end

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Send it, until its end or until the client goes away."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._left is not None and not self._turn.has_ended:
                self._left(self._turn.run_id)
            self._end.set()
            self._attended.pop(self._turn.run_id, None)


def surface_route(spell: Callable[[Problem], Response]) -> type[APIRoute]:
    """Return the route class of a protocol, in which every error is spelled as the protocol wants it."""

    class SurfaceRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def answer(request: Request) -> Response:
                try:
                    return await handle(request)
                except Problem as problem:
                    return spell(problem)
                except RequestValidationError as error:
                    return spell(problem_of_validation(error))
                except StoppableError as error:
                    return spell(problem_for(request, error))

            return answer

    return SurfaceRoute
