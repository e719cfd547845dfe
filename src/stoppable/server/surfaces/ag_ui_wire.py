"""AG-UI on the wire: what it is sent, and the events and errors that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from stoppable._core.values import Status
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.backend import Host
from stoppable.server.responses import Problem, json_response
from stoppable.server.surfaces.ends import End
from stoppable.server.surfaces.inputs import invalid, read_model
from stoppable.server.surfaces.surface import Wording, data_line

VERSION = "1.0"
"""The version of the protocol that these events are of."""

# Requests

# An id of a message becomes a label of the run, and one of a thread its key.
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
_ROLES = Literal["developer", "system", "assistant", "user", "tool", "activity", "reasoning"]
_NOT_SAID = ("activity", "reasoning")


class _Model(BaseModel):
    # What a client says about its own tools and state has no meaning for an agent, so it is ignored.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True, alias_generator=None)


class _Part(_Model):
    type: str
    text: str | None = None


class _Function(_Model):
    name: str
    arguments: str


class _ToolCall(_Model):
    id: str
    function: _Function


class Message(_Model):
    """One message of a conversation."""

    id: Name
    role: _ROLES
    content: str | list[_Part] | dict[str, Any] | None = None
    tool_calls: list[_ToolCall] | None = Field(default=None, alias="toolCalls")
    tool_call_id: str | None = Field(default=None, alias="toolCallId")
    subagent: str | None = Field(default=None, alias="subagentRunId")


class RunInput(_Model):
    """The body of a request: the conversation so far, with the question last."""

    thread_id: Name = Field(alias="threadId")
    run_id: Name = Field(alias="runId")
    version: str | None = Field(default=None, alias="protocolVersion")
    messages: list[Message]
    resume: Annotated[list[Any], Field(max_length=0)] | None = None
    """Answers to interrupts, which no agent here has."""

    @property
    def question(self) -> str:
        """The id of the last message of the user."""
        for one in reversed(self.messages):
            if one.role == "user":
                return one.id
        raise invalid("messages: there is no message of the user")


async def read_input(host: Host, request: Request) -> tuple[RunInput, list[dict[str, Any]]]:
    """Return the body of a request, checked, and its messages as they were sent."""
    body, sent = await read_model(host, request, RunInput)
    return body, sent["messages"]


def chat_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat completions have them, without those of sub-agents and those that nobody said."""
    chat = []
    for number, one in enumerate(messages):
        if one.role in _NOT_SAID or one.subagent is not None:
            continue
        entry: dict[str, Any] = {"role": one.role, "content": _text_of(one, f"messages.{number}.content")}
        if one.tool_calls:
            entry["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.model_dump()} for call in one.tool_calls
            ]
        if one.tool_call_id is not None:
            entry["tool_call_id"] = one.tool_call_id
        chat.append(entry)
    return chat


def _text_of(message: Message, place: str) -> str:
    content = message.content or ""
    if isinstance(content, dict):
        raise invalid(f"{place}: an object, which only an activity has")
    if isinstance(content, str):
        return content
    for part in content:
        if part.type != "text":
            raise invalid(f"{place}: parts of type {part.type!r:.80} are not supported: send text")
    return "".join(part.text or "" for part in content)


# Errors


def spell(problem: Problem) -> Response:
    """Return what is wrong with a request as the event that tells of an error; its run has not begun."""
    error = {"type": "RUN_ERROR", "message": problem.detail, "code": problem.code}
    return json_response(error, problem.status_code, problem.headers)


# History


def message_id(run_id: str) -> str:
    """Return the id of what a run says."""
    return f"msg_{run_id}"


def message_of(run_id: str, end: End) -> dict[str, Any]:
    """Return what a turn has said, as a message that tells if it was not completed."""
    said: dict[str, Any] = {"id": message_id(run_id), "role": "assistant", "content": end.text}
    if end.status is not Status.COMPLETED:
        said["metadata"] = {"stoppable": {"run": end.run_id, "status": end.status.value, "message": end.sentence}}
    return said


def seal(sent: Sequence[Mapping[str, Any]], question: str, kept: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """Return the snapshots that put what a stopped turn had said into the history of a client; the last one is whole.

    It follows its question. There are none if the client knows it already, has removed the question, or asks it again.
    """
    places = {one["id"]: place for place, one in enumerate(sent)}
    asked = [place for place, one in enumerate(sent) if one["role"] == "user"]
    place = places.get(question)
    if place is None or place >= asked[-1]:
        return []
    known = places.get(kept["id"])
    if known is not None:
        if sent[known].get("content") == kept["content"] and sent[known].keys() >= kept.keys():
            return []
        return [[*map(dict, sent[:known]), {**sent[known], **kept}, *map(dict, sent[known + 1 :])]]
    following = next(other for other in asked if other > place)
    begin, rest = [*map(dict, sent[:following]), dict(kept)], list(map(dict, sent[following:]))
    # A client appends what it does not know. Without the first one it would have the answer after the next question.
    return [begin, [*begin, *rest]]


# Streams


class RunEvents(Wording):
    """The events of a run. Clients from before 1.0 know neither sub-agents nor a run that was cancelled."""

    def __init__(
        self,
        body: RunInput,
        messages: Sequence[dict[str, Any]],
        snapshots: Sequence[Sequence[dict[str, Any]]] = (),
    ) -> None:
        self._body = body
        self._is_current = body.version is not None
        self._snapshots = snapshots
        self._messages = list(messages)
        self._open: set[str] = set()
        self._said = ""
        self._run_id = ""
        self._shown: set[str] = set()

    def opening(self, record: RunRecord) -> bytes:
        """Return its start, and the history that a stopped turn has left."""
        self._run_id = record.id
        version = {"protocolVersion": VERSION} if self._is_current else {}
        return b"".join(
            [_event("RUN_STARTED", **self._names, **version)]
            + [_event("MESSAGES_SNAPSHOT", messages=messages) for messages in self._snapshots]
        )

    @property
    def _names(self) -> dict[str, str]:
        return {"threadId": self._body.thread_id, "runId": self._body.run_id}

    def text(self, delta: str) -> bytes:
        """Return a piece of the answer."""
        self._said += delta
        return self._text(self._body.run_id, delta)

    def _text(self, run_id: str, delta: str, **owner: str) -> bytes:
        name, begin = message_id(run_id), b""
        if name not in self._open:
            self._open.add(name)
            self._messages.append({"id": name, "role": "assistant", "content": "", **owner})
            begin = _event("TEXT_MESSAGE_START", messageId=name, role="assistant", **owner)
        return begin + _event("TEXT_MESSAGE_CONTENT", messageId=name, delta=delta, **owner)

    def _close(self, run_id: str, message: Mapping[str, Any], **owner: str) -> bytes:
        name = message_id(run_id)
        if name not in self._open:
            return b""
        self._open.remove(name)
        for one in self._messages:
            if one["id"] == name:
                one.update(message)
        return _event("TEXT_MESSAGE_END", messageId=name, **owner)

    def other(self, event: Event) -> bytes:
        """Return what the agent reports on its way, and that it is being stopped."""
        owner = {} if event.run_id == self._run_id else {"subagentRunId": event.run_id}
        if event.type is EventType.STATUS and event.data.get("status") == Status.STOPPING:
            return _event("CUSTOM", name="stoppable.stopping", value=event.data, **owner)
        if event.type is EventType.PROGRESS and event.data.get("name") != "item":
            return _event("CUSTOM", name=str(event.data.get("name")), value=event.data.get("data"), **owner)
        return b""

    def child(self, record: RunRecord) -> bytes:
        """Return the start of a sub-agent."""
        self._shown.add(record.id)
        parent = {"parentSubagentRunId": record.parent_id} if record.parent_id in self._shown else {}
        return _event("SUBAGENT_STARTED", subagentRunId=record.id, name=record.name, **parent)

    def child_text(self, record: RunRecord, delta: str) -> bytes:
        """Return a piece of what a sub-agent says."""
        return self._text(record.id, delta, subagentRunId=record.id)

    def child_end(self, record: RunRecord, said: str) -> bytes:
        """Return the end of a sub-agent; the protocol has no cancelled one, so a stopped one is an error."""
        owner = {"subagentRunId": record.id}
        text_end = self._close(record.id, {"content": said}, **owner)
        if not record.over:
            return text_end + _event("SUBAGENT_ERROR", message="It has not ended.", code=record.status.value, **owner)
        end = End.of(record)
        if end.status is Status.COMPLETED:
            return text_end + _event("SUBAGENT_FINISHED", **owner, **_result_of(end))
        return text_end + _event("SUBAGENT_ERROR", message=end.sentence, code=end.status.value, **owner)

    def end(self, end: End) -> bytes:
        """Return the end of what was said, and of the run."""
        said = message_of(self._body.run_id, end)
        chunks = [self._close(self._body.run_id, said)]
        if end.text and (end.text != self._said or end.status is not Status.COMPLETED):
            if all(one["id"] != said["id"] for one in self._messages):
                self._messages.append(said)
            chunks.append(_event("MESSAGES_SNAPSHOT", messages=self._messages))
        chunks.append(self._last(end))
        return b"".join(chunks)

    def _last(self, end: End) -> bytes:
        metadata = {"stoppable": end.facts}
        if end.status is Status.COMPLETED:
            return _event("RUN_FINISHED", **self._names, **_result_of(end))
        if end.status is Status.STOPPED and self._is_current:
            # Clients from before 1.0 drop an outcome that they do not know, and would call the run completed.
            return _event("RUN_FINISHED", **self._names, outcome={"type": "cancelled"}, metadata=metadata)
        return _event("RUN_ERROR", message=end.sentence, code=end.status.value, metadata=metadata)

    def broken(self, name: str, message: str) -> bytes:
        """Return an error, which ends everything that is open."""
        return _event("RUN_ERROR", message=message, code=name)


def _result_of(end: End) -> dict[str, Any]:
    return {} if end.result is None else {"result": end.result}


def _event(kind: str, **fields: Any) -> bytes:
    return data_line({"type": kind, **fields})
