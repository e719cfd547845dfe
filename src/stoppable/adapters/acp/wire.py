"""What goes over the wire of ACP: lines of JSON-RPC, prompts, and the updates of a turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import acp
from acp import schema

from stoppable import EventType, Fate, Status
from stoppable.records import TreeEvent
from stoppable.server.responses import dumps, loads
from stoppable.server.schemas import RUN_ID, check_depth
from stoppable.server.surfaces.ends import End

PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS, INTERNAL_ERROR, NOT_FOUND = -32700, -32600, -32602, -32603, -32002


class WrongLine(Exception):
    """A line that is no message; it has the error object of the answer."""

    def __init__(self, code: int, message: str, request_id: Any = None) -> None:
        super().__init__(message)
        error = {"code": code, "message": message}
        self.answer: bytes = dumps({"jsonrpc": "2.0", "id": request_id, "error": error}) + b"\n"


def check_line(line: bytes) -> bytes:
    """Return a line as the package reads it, nothing if it needs no answer, or raise WrongLine.

    The package ends its connection at a line that is no object, and takes the metadata of a request for arguments.
    """
    if not line.strip():
        return b""
    try:
        message = check_depth(loads(line))
    except (ValueError, RecursionError) as error:
        raise WrongLine(PARSE_ERROR, f"this line is not JSON that can be read: {error}"[:200]) from None
    if not isinstance(message, dict):
        raise WrongLine(INVALID_REQUEST, "a message is an object: this agent takes no batches")
    if "method" not in message and ("result" in message or "error" in message):
        return b""  # an answer, and nothing was asked
    request_id = message.get("id")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | float | None):
        raise WrongLine(INVALID_REQUEST, "the id of a request is a string or a number")
    if not isinstance(message.get("method"), str):
        raise WrongLine(INVALID_REQUEST, "a message has a method, which is a string", request_id)
    if isinstance(message.get("params"), dict):
        message["params"].pop("_meta", None)
    return dumps(message) + b"\n"


def is_session(value: str) -> bool:
    """Return whether a text can be the id of a session."""
    return re.fullmatch(RUN_ID, value) is not None


def text_of(prompt: Sequence[Any]) -> str:
    """Return a prompt as text: files that came with it have their names before them."""
    return "\n".join(map(_text_of_block, prompt))


def _text_of_block(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "resource_link":
            return f"{block.name}: {block.uri}"
        case "resource" if getattr(block.resource, "text", None) is not None:
            return f"{block.resource.uri}:\n{block.resource.text}"
    message = f"a prompt has text and files of text here, not {block.type}"
    raise acp.RequestError(INVALID_PARAMS, message)


_ALIVE = "It may still be running."
_FATES = {Fate.ABANDONED: _ALIVE, Fate.UNREACHABLE: _ALIVE}


class ToolCalls:
    """The tools of a turn, and of the runs below it, as their client sees them."""

    def __init__(self) -> None:
        self._open: dict[str, Any] = {}

    def take(self, event: TreeEvent) -> Any:
        """Return what the client is told of an event, or None."""
        data = event.data
        if data.get("kind") != "tool" or "boundary" not in data:
            return None
        call_id = f"{event.run_id}.{data['boundary']}"
        if event.type is EventType.ENTERED:
            title = self._open[call_id] = data.get("name") or "tool"
            return acp.start_tool_call(call_id, title, kind="other", status="in_progress")
        if event.type is EventType.LEFT and self._open.pop(call_id, None) is not None:
            fate = data.get("fate", Fate.FINISHED)
            return _done(call_id) if fate == Fate.FINISHED else _cut(call_id, _FATES.get(fate, f"Stopped: {fate}."))
        return None

    def rest(self, end: End) -> list[Any]:
        """Return what the client is told of the tools whose end it has not seen when the turn has ended."""
        calls, self._open = list(self._open), {}
        match end.status:
            case Status.COMPLETED:
                return [_done(call_id) for call_id in calls]  # its log was full
            case Status.LOST:
                return [_cut(call_id, _ALIVE) for call_id in calls]
            case _:
                return [_cut(call_id, "It ended with the turn.") for call_id in calls]


def _done(call_id: str) -> Any:
    return acp.update_tool_call(call_id, status="completed")


def _cut(call_id: str, text: str) -> Any:
    """Return the end of a tool that did not finish; version 1 of the protocol has no word but ``failed`` for it."""
    return acp.update_tool_call(call_id, status="failed", content=[acp.tool_content(acp.text_block(text))])


def response(end: End) -> Any:
    """Return the answer to a prompt; only a turn of which nothing is left is ``cancelled``, otherwise this raises."""
    facts = {"stoppable": plain(end.facts)}
    match end.status:
        case Status.COMPLETED:
            return schema.PromptResponse(stop_reason="end_turn", field_meta=facts)
        case Status.STOPPED:
            return schema.PromptResponse(stop_reason="cancelled", field_meta=facts)
        case _:
            raise acp.RequestError(INTERNAL_ERROR, end.sentence, facts)


def plain(value: Mapping[str, Any]) -> Any:
    """Return a value as JSON has it."""
    return loads(dumps(value))
