"""The UI message stream of the AI SDK on the wire: what ``useChat`` sends, and the parts that it is answered with.

Clients of version 5 refuse a part with a field that they do not know, so only what that version has is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from fastapi import Request
from pydantic import BaseModel, ConfigDict, StringConstraints

from stoppable._core.values import Fate, Status
from stoppable.records import Event, EventType, RunRecord
from stoppable.server.backend import Host
from stoppable.server.schemas import StopBody
from stoppable.server.surfaces.ends import End, call_sentence, open_call_sentence
from stoppable.server.surfaces.inputs import invalid, read_model
from stoppable.server.surfaces.surface import Wording, data_line

HEADER = ("x-vercel-ai-ui-message-stream", "v1")
"""Says of which protocol a stream is, and of which version."""

# Requests

Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""An id of a chat, which becomes the key of its runs."""


class _Model(BaseModel):
    # Pages add fields of their own to a request, and a part may be of any kind.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)


class _Part(_Model):
    type: str
    text: Any = None


class Message(_Model):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    parts: list[_Part]


class ChatBody(_Model):
    """The body of a request: the chat so far, with the question last."""

    id: Name
    messages: list[Message]
    trigger: Literal["submit-message", "regenerate-message"] | None = None
    on_disconnect: Literal["stop", "keep"] = "stop"


async def read_chat(host: Host, request: Request) -> ChatBody:
    """Return the body of a request that asks for an answer."""
    body, _ = await read_model(host, request, ChatBody)
    if not body.messages or body.messages[-1].role != "user":
        raise invalid("messages: the last one is not of the user, so there is nothing to answer")
    return body


async def read_stop(host: Host, request: Request) -> StopBody:
    """Return how a turn is to be stopped; a request may leave that out."""
    body, _ = await read_model(host, request, StopBody, b"{}")
    return body


def chat_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat completions have them: what was said, without what a page shows beside it."""
    chat = [{"role": one.role, "content": _text_of(one, number)} for number, one in enumerate(messages)]
    return [one for one in chat if one["content"] or one["role"] == "user"]


def _text_of(message: Message, number: int) -> str:
    texts = []
    for part in message.parts:
        if part.type == "text":
            if not isinstance(part.text, str):
                raise invalid(f"messages.{number}.parts: a text part needs a text")
            texts.append(part.text)
        elif part.type == "file" and message.role == "user":
            raise invalid(f"messages.{number}.parts: files are not supported: send text")
    return "".join(texts)


# Streams


class MessageParts(Wording):
    """The parts of the message that a turn says: its text, the tools that it calls, and what became of both."""

    def __init__(self) -> None:
        self._run_id = ""
        self._texts = 0
        self._is_text_open = False
        self._open_calls: dict[str, None] = {}

    def opening(self, record: RunRecord) -> bytes:
        """Return the start of the message; its metadata has the run."""
        self._run_id = record.id
        metadata = {"stoppable": {"run": record.id}}
        start = _part("start", messageId=f"msg_{record.id}", messageMetadata=metadata)
        return start + _part("start-step")

    def text(self, delta: str) -> bytes:
        """Return a piece of the answer."""
        begin = b""
        if not self._is_text_open:
            self._is_text_open = True
            self._texts += 1
            begin = _part("text-start", id=self._text_id)
        return begin + _part("text-delta", id=self._text_id, delta=delta)

    @property
    def _text_id(self) -> str:
        return f"text_{self._texts}"

    def _close_text(self) -> bytes:
        if not self._is_text_open:
            return b""
        self._is_text_open = False
        return _part("text-end", id=self._text_id)

    def other(self, event: Event) -> bytes:
        """Return a tool call of the agent or of a sub-agent, what they report, and that the turn is being stopped."""
        data = event.data
        match event.type:
            case EventType.STATUS if data.get("status") == Status.STOPPING and event.run_id == self._run_id:
                return _part("data-stopping", data=data, transient=True)
            case EventType.PROGRESS if data.get("name") != "item":
                return self._report(event.run_id, str(data.get("name")), data.get("data"))
            case EventType.ENTERED if data.get("kind") == "tool":
                return self._begin_call(_call_id(event), str(data.get("name")))
            case EventType.LEFT if _call_id(event) in self._open_calls:
                return self._end_call(_call_id(event), data.get("fate"))
            case _:
                return b""

    def _report(self, run_id: str, name: str, value: Any) -> bytes:
        # A client puts each id into its message once, and sends the message back with the next question.
        own = value.get("id") if isinstance(value, Mapping) else None
        name_in_message = own if isinstance(own, str) else name
        report_id = name_in_message if run_id == self._run_id else f"{run_id}/{name_in_message}"
        return _part(f"data-{name}", id=report_id, data=value)

    def _begin_call(self, call_id: str, name: str) -> bytes:
        self._open_calls[call_id] = None
        call = {"toolCallId": call_id, "toolName": name, "input": {}}
        return self._close_text() + _part("tool-input-available", **call, **_ELSEWHERE)

    def _end_call(self, call_id: str, fate: str | None) -> bytes:
        del self._open_calls[call_id]
        sentence = None if fate is None else call_sentence(Fate(fate))
        return _finished_call(call_id) if sentence is None else _cut_call(call_id, sentence)

    def child(self, record: RunRecord) -> bytes:
        """Return the start of a sub-agent, which its end replaces."""
        return _part("data-subagent", id=record.id, data={"name": record.name, "status": record.status.value})

    def child_end(self, record: RunRecord, said: str) -> bytes:
        """Return the end of a sub-agent, with what it has said."""
        end = End.of(record) if record.over else None
        message = "It has not ended." if end is None else end.sentence
        data = {"name": record.name, "status": record.status.value, "text": said, "message": message}
        return _part("data-subagent", id=record.id, data=data)

    def end(self, end: End) -> bytes:
        """Return what became of everything that is open, and the end of the message."""
        chunks = [self._close_text()]
        chunks += [_cut_call(call_id, open_call_sentence(end.status)) for call_id in self._open_calls]
        facts = {"run": end.run_id, "status": end.status.value, "message": end.sentence, "alive": end.alive}
        metadata = {"stoppable": facts}
        if end.status is Status.COMPLETED:
            if end.result is not None and not isinstance(end.result, str):
                chunks.append(_part("data-result", data=end.result))
            chunks += [_part("finish-step"), _part("finish", messageMetadata=metadata)]
        else:
            chunks += [_part("message-metadata", messageMetadata=metadata), _part("finish-step")]
            is_stopped = end.status is Status.STOPPED
            chunks.append(_part("abort") if is_stopped else _part("error", errorText=end.sentence))
        return b"".join([*chunks, _DONE])

    def broken(self, name: str, message: str) -> bytes:
        """Return an error, because how the turn goes on is not known here."""
        return _part("error", errorText=f"{message} ({name})") + _DONE


_ELSEWHERE = {"providerExecuted": True, "dynamic": True}
"""Of a call that is no client's to execute, of a tool that its page does not know."""

_DONE = b"data: [DONE]\n\n"


def _call_id(event: Event) -> str:
    return f"call_{event.run_id}_{event.data.get('boundary')}"


def _finished_call(call_id: str) -> bytes:
    return _part("tool-output-available", toolCallId=call_id, output={"fate": Fate.FINISHED.value}, **_ELSEWHERE)


def _cut_call(call_id: str, sentence: str) -> bytes:
    return _part("tool-output-error", toolCallId=call_id, errorText=sentence, **_ELSEWHERE)


def _part(kind: str, **fields: Any) -> bytes:
    return data_line({"type": kind, **fields})
