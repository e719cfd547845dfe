"""The LangGraph API on the wire: what it is sent, and the objects, events and errors that it answers with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from stoppable._core.values import Reason, ReasonKind, Status
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.responses import Problem, json_response
from stoppable.server.sse.feeds import message
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.inputs import invalid
from stoppable.server.surfaces.surface import Wording

PROTOCOL = "langgraph_api"
"""The name in keys, in the reasons of stops, and of the facts that the record of a run has of its request."""
ROLLBACK = "rolled back"
"""The reason of a stop that takes the turn out of its thread: it is in the store with the stop, so it outlives us."""

# Requests

# Less than an id may have, and nothing that a header or a path would have to escape.
ID = r"^[A-Za-z0-9][A-Za-z0-9._~:-]{0,114}$"
Id: TypeAlias = Annotated[str, StringConstraints(pattern=ID)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Modes: TypeAlias = Literal[
    "values", "messages", "messages-tuple", "updates", "custom", "events", "debug", "tasks", "checkpoints"
]
ALL_MODES: tuple[str, ...] = get_args(Modes)
RunStatus: TypeAlias = Literal["pending", "running", "error", "success", "timeout", "interrupted"]
ThreadStatus: TypeAlias = Literal["idle", "busy", "interrupted", "error"]
Facts: TypeAlias = dict[str, Any]
Limit: TypeAlias = Annotated[int, Field(ge=1, le=1000)]
Offset: TypeAlias = Annotated[int, Field(ge=0, le=1_000_000)]


class _Body(BaseModel):
    # What is for a graph or for the platform of LangGraph has no meaning for an agent, so it is ignored.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)


class RunBody(_Body):
    """The body of a request that starts a run."""

    assistant_id: Name
    input: Any = None
    metadata: Facts | None = None
    stream_mode: Modes | list[Modes] | None = None
    multitask_strategy: Literal["reject", "interrupt", "rollback", "enqueue"] | None = None
    if_not_exists: Literal["create", "reject"] | None = None
    on_disconnect: Literal["cancel", "continue"] | None = None
    on_completion: Literal["delete", "keep"] | None = None
    checkpoint: Facts | None = None
    checkpoint_id: str | None = None
    command: Any = None
    interrupt_before: Any = None
    interrupt_after: Any = None
    after_seconds: Any = None
    webhook: Any = None

    def refuse_what_is_missing(self) -> None:
        """Refuse what would make the run another one than the client means."""
        for name in ("command", "interrupt_before", "interrupt_after", "after_seconds", "webhook"):
            if getattr(self, name):
                raise invalid(f"{name}: not supported here")

    @property
    def modes(self) -> tuple[str, ...]:
        """What its streams show."""
        modes = self.stream_mode or ["values"]
        return (modes,) if isinstance(modes, str) else tuple(modes)

    def kept(self) -> Facts:
        """Return what the record of its run has of it."""
        strategy = self.multitask_strategy or "enqueue"
        return {"input": self.input, "metadata": self.metadata or {}, "modes": self.modes, "strategy": strategy}

    @property
    def begins_at(self) -> str | None:
        """The checkpoint that it goes on from, if that need not be the newest."""
        return checkpoint_id_of(self.checkpoint) or self.checkpoint_id or None


class ThreadBody(_Body):
    """The body of a request that makes a thread."""

    thread_id: Id | None = None
    metadata: Facts | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    supersteps: Annotated[list[Any], Field(max_length=0)] | None = None


class ThreadPatch(_Body):
    """The body of a request that changes the metadata of a thread."""

    metadata: Facts | None = None


class ThreadSearch(_Body):
    """Which threads are asked for."""

    metadata: Facts | None = None
    values: Facts | None = None
    status: ThreadStatus | None = None
    ids: list[str] | None = None
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Literal["thread_id", "status", "created_at", "updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None


class AssistantSearch(_Body):
    """Which assistants are asked for."""

    metadata: Facts | None = None
    graph_id: str | None = None
    name: str | None = None
    limit: Limit = 10
    offset: Offset = 0


class HistoryBody(_Body):
    """Which states of a thread are asked for."""

    limit: Limit = 10
    before: Facts | str | None = None
    metadata: Facts | None = None
    checkpoint: Facts | None = None


class CheckpointBody(_Body):
    """The state that is asked for."""

    checkpoint: Facts


class CancelBody(_Body):
    """The runs that are to be cancelled."""

    thread_id: Id | None = None
    run_ids: Annotated[list[str], Field(max_length=1000)] | None = None
    status: Literal["pending", "running", "all"] | None = None


class _Message(_Body):
    type: str | None = None
    role: str | None = None
    id: str | None = None
    content: str | list[str | Facts] | None = None


def checkpoint_id_of(value: Mapping[str, Any] | str | None) -> str | None:
    """Return the id in a checkpoint, or in a config that has one."""
    if isinstance(value, Mapping):
        value = value.get("configurable", value)
        value = value.get("checkpoint_id") if isinstance(value, Mapping) else None
    if value is not None and not isinstance(value, str):
        raise invalid("checkpoint_id: use a string")
    return value


# Messages

_TYPES = {
    "human": "human",
    "user": "human",
    "ai": "ai",
    "assistant": "ai",
    "system": "system",
    "developer": "system",
    "tool": "tool",
}
_ROLES = {"human": "user", "ai": "assistant", "system": "system"}


def messages_of(given: Any, run_id: str) -> list[Facts]:
    """Return the messages of an input as the API shows them, each with an id."""
    several = given if isinstance(given, list) else [given]
    if len(several) == 2 and all(isinstance(one, str) for one in several) and several[0] in _TYPES:
        several = [several]
    return [_message_of(one, f"{run_id}-{number}", f"messages.{number}") for number, one in enumerate(several)]


def _message_of(given: Any, default_id: str, place: str) -> Facts:
    match given:
        case str():
            given = {"type": "human", "content": given}
        case [str(role), str(text)]:
            given = {"type": role, "content": text}
        case dict():
            pass
        case _:
            raise invalid(f"{place}: use an object with type and content, or a text")
    try:
        one = _Message.model_validate(given)
    except ValueError:
        raise invalid(f"{place}: type, content and id are texts, or content a list of parts") from None
    kind = _TYPES.get(one.type or one.role or "")
    if kind is None:
        raise invalid(f"{place}: unknown type {one.type or one.role!r:.80}: use human, ai, system or tool")
    rest = {name: value for name, value in given.items() if name not in {"type", "role", "id", "content"}}
    return {**rest, "type": kind, "id": one.id or default_id, "content": given.get("content") or ""}


def text_of(one: Mapping[str, Any]) -> str:
    """Return the text of a message; refuse what is no text."""
    content = one.get("content") or ""
    for part in () if isinstance(content, str) else content:
        if isinstance(part, Mapping) and part.get("type") != "text":
            raise invalid(f"messages: parts of type {part.get('type')!r:.80} are not supported: send text")
    return said_in(one)


def said_in(one: Mapping[str, Any]) -> str:
    """Return the text of a message, without images and what else may be in it."""
    content = one.get("content") or ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part if isinstance(part, str) else part.get("text") for part in parts if isinstance(part, str | Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def chat_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what was said in messages, as chat completions have it."""
    said = [{"role": _ROLES.get(str(one.get("type"))), "content": said_in(one)} for one in messages]
    return [one for one in said if one["role"] == "user" or (one["role"] and one["content"])]


def answer_of(run_id: str, text: str, end: End | None = None) -> Facts:
    """Return what a run has said, as a message; it tells if the run was not completed."""
    told = None if end is None or end.status is Status.COMPLETED else {"stoppable": told_of(end)}
    return {
        "type": "ai",
        "id": f"run-{run_id}",
        "content": text,
        "additional_kwargs": {},
        "response_metadata": told or {},
        "tool_calls": [],
        "invalid_tool_calls": [],
    }


def told_of(end: End) -> Facts:
    """Return what clients are told of the end of a run that was not completed."""
    return {"run": end.run_id, "status": end.status.value, "message": end.sentence, "alive": list(end.alive)}


# Errors

# Their clients know 422 for every bad body. They would repeat a request that a hold refuses.
_STATUSES = {400: 422, 423: 403}


def spell(problem: Problem) -> Response:
    """Return an error as clients of the API read it."""
    status = _STATUSES.get(problem.status_code, problem.status_code)
    return json_response({"detail": problem.detail, "code": problem.code}, status, problem.headers)


def error_of(end: End) -> Facts | None:
    """Return the error that a run has ended with, if it has."""
    match end.status:
        case Status.FAILED:
            kind, _, text = (end.error or "Error: it failed").partition(": ")
            return {"error": kind, "message": text}
        case Status.LOST:
            return {"error": "StopNotConfirmed", "message": end.sentence}
        case _:
            return None


# Objects


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a thread contains before or after a turn."""

    checkpoint_id: str
    parent_id: str | None
    values: Mapping[str, Any]
    record: RunRecord
    is_input: bool
    """Whether the turn has not answered in it."""
    end: End | None = None


def state_object(thread_id: str, state: State | None, facts: Mapping[str, Any]) -> Facts:
    """Return a state; None is that of a thread without runs."""
    if state is None:
        return {
            "values": {},
            "next": [],
            "tasks": [],
            "interrupts": [],
            "metadata": dict(facts),
            "checkpoint": None,
            "parent_checkpoint": None,
            "created_at": None,
        }
    record, error = state.record, None if state.end is None else error_of(state.end)
    task = {"id": record.id, "name": record.name, "error": error and f"{error['error']}: {error['message']}"}
    is_open = state.is_input and not record.over
    return {
        "values": state.values,
        "next": [record.name] if is_open else [],
        "tasks": [{**task, "interrupts": [], "checkpoint": None, "state": None}] if is_open or error else [],
        "interrupts": [],
        "metadata": {
            **facts,
            "run_id": record.id,
            "source": "input" if state.is_input else "loop",
            **({} if state.end is None or state.end.status is Status.COMPLETED else {"stoppable": told_of(state.end)}),
        },
        "checkpoint": _checkpoint(thread_id, state.checkpoint_id),
        "parent_checkpoint": None if state.parent_id is None else _checkpoint(thread_id, state.parent_id),
        "created_at": time_text(record.created_at if state.is_input else record.ended_at or record.created_at),
    }


def _checkpoint(thread_id: str, checkpoint_id: str) -> Facts:
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}


_STATES: Mapping[Status, RunStatus] = {
    Status.PENDING: "pending",
    Status.RUNNING: "running",
    Status.STOPPING: "running",
    Status.COMPLETED: "success",
    Status.FAILED: "error",
    Status.STOPPED: "interrupted",
    Status.LOST: "error",
}


def status_of(status: Status, reason: Reason | None) -> RunStatus:
    """Return the status of a run, in the words of the API: one that was stopped by a limit has timed out."""
    if status is Status.STOPPED and reason is not None and reason.kind is ReasonKind.LIMIT:
        return "timeout"
    return _STATES[status]


def request_of(record: RunRecord) -> Mapping[str, Any]:
    """Return what the record of a run has of its request."""
    facts = record.metadata.get(PROTOCOL)
    return facts if isinstance(facts, Mapping) else {}


def run_object(record: RunRecord, thread_id: str) -> Facts:
    """Return a run."""
    request, reason = request_of(record), None if record.outcome is None else record.outcome.reason
    metadata = dict(request.get("metadata") or {})
    if record.over and record.status is not Status.COMPLETED:
        metadata["stoppable"] = told_of(End.of(record))
    return {
        "run_id": record.id,
        "thread_id": thread_id,
        "assistant_id": record.name,
        "created_at": time_text(record.created_at),
        "updated_at": time_text(record.ended_at or record.started_at or record.created_at),
        "status": status_of(record.status, reason),
        "metadata": metadata,
        "kwargs": {"input": request.get("input"), "stream_mode": request.get("modes")},
        "multitask_strategy": request.get("strategy", "enqueue"),
    }


def assistant_object(name: str, description: str | None) -> Facts:
    """Return an agent as an assistant, whose id is its name."""
    began = time_text(0)
    return {
        "assistant_id": name,
        "graph_id": name,
        "name": name,
        "description": description or None,
        "version": 1,
        "config": {},
        "context": {},
        "metadata": {"created_by": "system"},
        "created_at": began,
        "updated_at": began,
    }


def graph_object(name: str) -> Facts:
    """Return an agent as a graph with one node."""
    nodes = [{"id": one, "type": "runnable", "data": {"name": one}} for one in ("__start__", name, "__end__")]
    edges = [{"source": "__start__", "target": name}, {"source": name, "target": "__end__"}]
    return {"nodes": nodes, "edges": edges}


def time_text(seconds: float) -> str:
    """Return a time as the API has it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


# Streams


class RunEvents(Wording):
    """The events of a run. The same log gives the same numbers, so a client resumes after one that it has.

    ``load`` reads the values of the thread when the run begins, and ``finish`` adds its end to them.
    """

    def __init__(
        self,
        record: RunRecord,
        thread_id: str,
        modes: Collection[str],
        load: Callable[[], Awaitable[Mapping[str, Any]]],
        finish: Callable[[Mapping[str, Any], End], Mapping[str, Any]],
        after: int = -1,
    ) -> None:
        self._record, self._modes = record, frozenset(modes)
        self._load, self._finish, self._after = load, finish, after
        self._values: Mapping[str, Any] | None = None
        self._number = -1
        self._said = ""
        self._about = {
            "run_id": record.id,
            "thread_id": thread_id,
            "assistant_id": record.name,
            "graph_id": record.name,
            "langgraph_node": record.name,
            "langgraph_checkpoint_ns": "",
        }

    async def learn(self, event: Event) -> None:
        """Read the values of the thread once the turns before have ended."""
        if self._values is None and event.type in {EventType.STATUS, EventType.DONE}:
            self._values = await self._load()

    def opening(self, record: RunRecord) -> bytes:
        """Return the id of the run."""
        return self._event("metadata", {"run_id": record.id, "attempt": 1})

    def text(self, delta: str) -> bytes:
        """Return a piece of the answer."""
        chunk = b""
        if not self._said:
            about = {f"run-{self._record.id}": {"metadata": self._about}}
            chunk = self._event("messages/metadata", about, "messages")
        self._said += delta
        piece = {**answer_of(self._record.id, delta), "type": "AIMessageChunk"}
        chunk += self._event("messages", [piece, self._about], "messages-tuple")
        if "messages" not in self._modes:
            return chunk + self._event("messages/partial", None, "messages")  # only its number: the whole is long
        return chunk + self._event("messages/partial", [answer_of(self._record.id, self._said)], "messages")

    def other(self, event: Event) -> bytes:
        """Return the values that a run begins with, and what it reports on its way."""
        if event.type is EventType.STATUS and event.data.get("status") == Status.RUNNING.value:
            return self._event("values", self._values, "values")
        if event.type is EventType.PROGRESS and event.data.get("name") != "item":
            return self._event("custom", {"name": event.data.get("name"), "data": event.data.get("data")}, "custom")
        return b""

    def end(self, end: End) -> bytes:
        """Return the whole answer and the values that contain it, and the error if there is one.

        After a cancel the protocol has no event: the stream ends, and the status of the run says why.
        """
        if is_rollback(end.status, end.reason):
            return b""
        values = self._finish(self._values or {}, end)
        answer = answer_of(self._record.id, end.text, end)
        update = {self._record.name: {"messages": [answer]}}
        chunk = self._event("messages/complete", [answer], "messages") if end.text else b""
        chunk += self._event("updates", update, "updates") + self._event("values", values, "values")
        error = error_of(end)
        return chunk if error is None else chunk + self._event("error", error)

    def broken(self, name: str, message: str) -> bytes:  # noqa: ARG002 - no event is one that clients resume after
        """Return nothing: a client that sees that the run is at work comes back for the rest."""
        return b""

    def _event(self, kind: str, data: Any, mode: str | None = None) -> bytes:
        self._number += 1
        if self._number <= self._after or (mode is not None and mode not in self._modes):
            return b""
        return message(kind, data, self._number)


def is_rollback(status: Status, reason: Reason | None) -> bool:
    """Return whether a run is no longer a turn of its thread; one that may still be at work cannot be taken back."""
    is_meant = reason is not None and reason.source == PROTOCOL and reason.message == ROLLBACK
    return is_meant and status.terminal and status is not Status.LOST
