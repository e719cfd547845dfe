"""The Messages API of Anthropic, as the scripted model server speaks it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoppable.testing.model_server import Reply

_numbers = itertools.count(1)  # clients take two messages with the same id for one


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conversation of a request as chat completions have it."""
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        answers = [block for block in blocks if block["type"] == "tool_result"]
        messages += [
            {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _text_of(block.get("content"))}
            for block in answers
        ]
        if len(answers) < len(blocks):
            messages.append(_message(message["role"], blocks))
    return messages


def _message(role: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": _text_of([each for each in blocks if each["type"] == "text"])}
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content)
    return content or ""


def response(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """Return a whole reply."""
    text = [{"type": "text", "text": "".join(reply.tokens)}] if reply.tokens else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
        for call in reply.tool_calls
    ]
    return _envelope(body) | {"content": text + calls, "stop_reason": _stop_reason(reply), "usage": _usage(reply)}


def head(body: Mapping[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    """Yield the events before the first token."""
    yield {"type": "message_start", "message": _envelope(body)}
    if reply.tokens:
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}


def token(text: str) -> dict[str, Any]:
    """Return the event of a token."""
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def tail(reply: Reply) -> Iterator[dict[str, Any]]:
    """Yield the events after the last token: the tool calls, the reason, the end."""
    index = 0
    if reply.tokens:
        yield {"type": "content_block_stop", "index": index}
        index += 1
    for place, call in enumerate(reply.tool_calls, index):
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield {"type": "content_block_start", "index": place, "content_block": block}
        delta = {"type": "input_json_delta", "partial_json": call.arguments}
        yield {"type": "content_block_delta", "index": place, "delta": delta}
        yield {"type": "content_block_stop", "index": place}
    reason = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": _usage(reply)}
    yield {"type": "message_stop"}


def _envelope(body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{next(_numbers)}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "scripted"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _stop_reason(reply: Reply) -> str:
    return "tool_use" if reply.tool_calls else "end_turn"


def _usage(reply: Reply) -> dict[str, int]:
    return {"input_tokens": 0, "output_tokens": len(reply.tokens)}
