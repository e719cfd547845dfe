"""The threads of the LangGraph API: what they contain is read from the records of their runs, so it outlives a server.

Only what no run has yet is in memory: threads without runs, and metadata that was changed since the last one.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoppable._core.values import Status
from stoppable.records import Filter, RunRecord, RunSummary
from stoppable.server.hosted_agents import Signature
from stoppable.server.responses import Problem
from stoppable.server.surfaces import langgraph_wire as wire
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.inputs import CONVERSATION, arguments_of, invalid
from stoppable.server.surfaces.surface import Surface
from stoppable.supervisor import Supervisor

KEPT, TEMPORARY = "thread", "temporary"
"""What the label of a run says of its thread: whether a search finds it."""

_MOST_NEW = 1000  # threads of one owner that have had no run, and are in memory only
_MOST_RUNS = 10_000  # that a search looks at
_PAGE = 1000
_MESSAGES = "messages"
_LIVE = frozenset(status for status in Status if not status.terminal)


@dataclass(slots=True, kw_only=True)
class Thread:
    """A thread of an owner; ``runs`` are its turns, newest first."""

    id: str
    owner: str | None
    metadata: dict[str, Any]
    created_at: float
    updated_at: float
    runs: Sequence[RunSummary] = ()

    @property
    def status(self) -> str:
        """Whether it is at work, and how its last run has ended; it never waits for an answer of a person."""
        if any(not run.over for run in self.runs):
            return "busy"
        return "error" if self.runs and self.runs[0].status in {Status.FAILED, Status.LOST} else "idle"

    @property
    def facts(self) -> dict[str, Any]:
        """Its metadata, with the agent of its last run."""
        about = {} if not self.runs else {"graph_id": self.runs[0].name, "assistant_id": self.runs[0].name}
        return {**self.metadata, **about}

    def kept(self) -> dict[str, Any]:
        """Return what the records of its runs have of it."""
        return {"thread": self.metadata, "began": self.created_at}


@dataclass(slots=True, kw_only=True)
class _New:
    metadata: dict[str, Any]
    created_at: float


class Threads:
    """The threads of a server."""

    def __init__(self, surface: Surface, supervisor: Supervisor) -> None:
        self._surface, self._supervisor = surface, supervisor
        self._new: dict[str | None, OrderedDict[str, _New]] = {}

    # Threads

    def keep(self, owner: str | None, thread_id: str, metadata: Mapping[str, Any], created_at: float | None) -> None:
        """Remember what no run of a thread has yet."""
        threads = self._new.setdefault(owner, OrderedDict())
        began = self._supervisor.store.now() if created_at is None else created_at
        threads[thread_id] = _New(metadata=dict(metadata), created_at=began)
        threads.move_to_end(thread_id)
        while len(threads) > _MOST_NEW:
            threads.popitem(last=False)

    async def find(self, owner: str | None, thread_id: str) -> Thread | None:
        """Return a thread, or None if the owner has none of that id."""
        if re.fullmatch(wire.ID, thread_id) is None:
            return None
        runs = await self._runs(Filter(key=self._surface.key(thread_id), owner=owner, roots=True), owner)
        kept = self._remembered(owner).get(thread_id)
        return None if kept is None and not runs else await self._thread(owner, thread_id, runs, kept)

    async def get(self, owner: str | None, thread_id: str) -> Thread:
        """Return a thread, or raise a 404."""
        thread = await self.find(owner, thread_id)
        if thread is None:
            raise Problem(404, "thread_not_found", f"Thread {thread_id[:150]} not found")
        return thread

    async def all(self, owner: str | None) -> list[Thread]:
        """Return the threads of an owner, the one that was used last first."""
        by_key: dict[str, list[RunSummary]] = {}
        wanted = Filter(owner=owner, roots=True, labels={wire.PROTOCOL: KEPT})
        for run in await self._runs(wanted, owner):
            by_key.setdefault(run.key or "", []).append(run)
        remembered = self._remembered(owner)
        prefix = self._surface.key("")
        found = [
            await self._thread(owner, thread_id, runs, remembered.get(thread_id))
            for key, runs in by_key.items()
            for thread_id in [key.removeprefix(prefix)]
        ]
        used = {thread.id for thread in found}
        new = [await self._thread(owner, one, (), kept) for one, kept in remembered.items() if one not in used]
        return sorted([*found, *new], key=lambda thread: thread.updated_at, reverse=True)

    async def live_runs(self, owner: str | None, thread_id: str | None) -> list[RunSummary]:
        """Return the runs of an owner that have not ended, of one thread or of all."""
        key = None if thread_id is None else self._surface.key(thread_id)
        return await self._runs(Filter(owner=owner, key=key, roots=True, status=_LIVE), owner)

    def _remembered(self, owner: str | None) -> Mapping[str, _New]:
        return self._new.get(owner, {})

    async def _runs(self, wanted: Filter, owner: str | None) -> list[RunSummary]:
        runs: list[RunSummary] = []
        cursor, seen = None, 0
        while seen < _MOST_RUNS:
            page = await self._supervisor.list(wanted, cursor=cursor, limit=_PAGE)
            seen += len(page.runs)
            # The label tells our runs from others that somebody has started with the same key.
            runs += (run for run in page.runs if run.owner == owner and wire.PROTOCOL in run.labels)
            cursor = page.cursor
            if cursor is None:
                break
        return runs

    async def _thread(self, owner: str | None, thread_id: str, runs: Sequence[RunSummary], kept: _New | None) -> Thread:
        if kept is None:
            request = wire.request_of(await self._supervisor.get(runs[0].id))
            kept = _New(metadata=request.get("thread") or {}, created_at=request.get("began") or runs[-1].created_at)
        turns = [run for run in runs if not wire.is_rollback(run.status, run.reason)]
        return Thread(
            id=thread_id,
            owner=owner,
            metadata=dict(kept.metadata),
            created_at=kept.created_at,
            updated_at=turns[0].ended_at or turns[0].created_at if turns else kept.created_at,
            runs=turns,
        )

    # States

    async def states(self, thread: Thread) -> list[wire.State]:
        """Return the states of a thread, oldest first: of each turn the one with its input, and that with its end."""
        states: dict[str, wire.State] = {}
        head: wire.State | None = None
        for run in reversed(thread.runs):
            if run.started_at is None:
                continue  # its input was not taken, and may never be
            record = await self._supervisor.get(run.id)
            request = wire.request_of(record)
            base = states.get(request.get("begins_at") or "", head)
            head = _input_state(base, record, request)
            states[head.checkpoint_id] = head
            end = await self._surface.end(record)
            if end is not None:
                head = wire.State(
                    checkpoint_id=f"{record.id}.1",
                    parent_id=head.checkpoint_id,
                    values=with_end(head.values, end),
                    record=record,
                    is_input=False,
                    end=end,
                )
                states[head.checkpoint_id] = head
        return list(states.values())

    async def base(self, thread: Thread, begins_at: str | None) -> wire.State | None:
        """Return the state that a new turn goes on from: the newest one, or another if its client says which."""
        states = await self.states(thread)
        if begins_at is None:
            return states[-1] if states else None
        return state_at(states, begins_at)

    async def values_at(self, record: RunRecord, thread_id: str) -> Mapping[str, Any]:
        """Return the values that a turn begins with, or those of its thread if it never began."""
        thread = await self.find(record.owner, thread_id)
        states = [] if thread is None else await self.states(thread)
        own = [state for state in states if state.checkpoint_id == f"{record.id}.0"]
        newest = own or states[-1:]
        return newest[0].values if newest else {}


def state_at(states: Sequence[wire.State], checkpoint_id: str) -> wire.State:
    """Return the state of a checkpoint, or raise a 404."""
    for state in states:
        if state.checkpoint_id == checkpoint_id:
            return state
    raise Problem(404, "checkpoint_not_found", f"Checkpoint {checkpoint_id[:150]} not found")


def _input_state(base: wire.State | None, record: RunRecord, request: Mapping[str, Any]) -> wire.State:
    values = {} if base is None else dict(base.values)
    values |= request.get("values") or {}
    new = request.get(_MESSAGES) or []
    if new:
        values[_MESSAGES] = merge([*(values.get(_MESSAGES) or []), *new])
    parent_id = None if base is None else base.checkpoint_id
    return wire.State(checkpoint_id=f"{record.id}.0", parent_id=parent_id, values=values, record=record, is_input=True)


def merge(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages, with one that has the id of an earlier one in the place of that."""
    by_id: dict[str | int, Mapping[str, Any]] = {}
    for number, one in enumerate(messages):  # an agent may have returned anything as a message
        own = one.get("id") if isinstance(one, Mapping) else None
        by_id[own if isinstance(own, str) else number] = one
    return list(by_id.values())


def with_end(values: Mapping[str, Any], end: End) -> dict[str, Any]:
    """Return the values of a thread with what a run has answered.

    A result that has messages, as that of a graph, is the whole state. Any other answer is one more message.
    """
    result = end.result if end.status is Status.COMPLETED and isinstance(end.result, dict) else {}
    if isinstance(result.get(_MESSAGES), list):
        named = [
            {**one, "id": one.get("id") or f"{end.run_id}-{number}"} if isinstance(one, dict) else one
            for number, one in enumerate(result[_MESSAGES])
        ]
        return {**values, **result, _MESSAGES: named}
    messages = [*(values.get(_MESSAGES) or [])]
    if end.text:
        messages.append(wire.answer_of(end.run_id, end.text, end))
    return {**values, **result, _MESSAGES: messages}


# What a turn gets


@dataclass(slots=True, kw_only=True)
class Turn:
    """The input of a new turn: for its agent, and for the states of its thread."""

    arguments: Any
    messages: list[dict[str, Any]]
    values: dict[str, Any]
    takes_history: bool
    """Whether the arguments contain the history of the thread, which the agent does not keep itself."""

    def kept(self) -> dict[str, Any]:
        """Return what the record of its run has of it."""
        return {_MESSAGES: self.messages, "values": self.values}

    def add_history(self, base: wire.State | None) -> None:
        """Put the messages of a state before the new ones, in the list that the agent will get."""
        if self.takes_history:
            self.arguments[_MESSAGES][:] = wire.chat_of([*_messages_in(base), *self.messages])


def turn_of(signature: Signature, given: Any, base: wire.State | None, thread_id: str, run_id: str) -> Turn:
    """Return the turn for an input: messages, or an object of the agent's arguments."""
    named = {name: thread_id for name in CONVERSATION if signature.takes(name)}
    if isinstance(given, dict) and _MESSAGES not in given:
        return Turn(arguments={**named, **given}, messages=[], values=given, takes_history=False)
    values = {name: value for name, value in given.items() if name != _MESSAGES} if isinstance(given, dict) else {}
    sent = given[_MESSAGES] if isinstance(given, dict) else given
    new = [] if sent is None else wire.messages_of(sent, run_id)
    further = {name: value for name, value in values.items() if signature.takes(name)}
    if named and signature.takes(_MESSAGES):
        if not new:
            raise invalid("input: there is no message")
        arguments: Any = {**named, _MESSAGES: new, **further}
        return Turn(arguments=arguments, messages=new, values=values, takes_history=False)
    for one in new:
        wire.text_of(one)  # or a 422
    whole = [*_messages_in(base), *new]
    chat = wire.chat_of(whole)
    arguments = arguments_of(signature, _question(whole), chat, thread_id)
    takes_history = False
    if isinstance(arguments, dict):
        takes_history = arguments.get(_MESSAGES) == chat  # otherwise the user has written them
        arguments |= further
    return Turn(arguments=arguments, messages=new, values=values, takes_history=takes_history)


def keeps_history(signature: Signature) -> bool:
    """Return whether an agent has the history of its conversations itself, as a graph with a checkpointer."""
    return any(signature.takes(name) for name in CONVERSATION)


def _messages_in(state: wire.State | None) -> list[Any]:
    messages = [] if state is None else state.values.get(_MESSAGES) or []
    return [one for one in messages if isinstance(one, dict)]


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    for one in reversed(messages):
        if one.get("type") == "human":
            return wire.said_in(one)
    raise invalid("input: there is no message of the user")
