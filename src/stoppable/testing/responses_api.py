"""The Responses API of OpenAI, as the scripted model server speaks it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoppable.testing.model_server import Reply

_ID, _MESSAGE_ID = "resp_scripted", "msg_scripted"


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conversation of a request as chat completions have it."""
    given = body["input"]
    items: Sequence[dict[str, Any]] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for item in items:
        match item.get("type", "message"):
            case "message":
                messages.append({"role": item["role"], "content": item["content"]})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item["call_id"], "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return messages


def response(body: Mapping[str, Any], reply: Reply) -> dict[str, Any]:
    """Return a whole reply."""
    count = len(reply.tokens)
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": count,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": count,
    }
    return _envelope(body, "completed") | {"output": _output(reply), "usage": usage}


def head(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events before the first token."""
    yield {"type": "response.created", "response": _envelope(body, "in_progress"), "sequence_number": 0}


def token(text: str) -> dict[str, Any]:
    """Return the event of a token."""
    place = {"item_id": _MESSAGE_ID, "output_index": 0, "content_index": 0, "sequence_number": 0}
    return {"type": "response.output_text.delta", "delta": text, "logprobs": [], **place}


def tail(body: Mapping[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    """Yield the events after the last token: each item that is complete, then the whole response."""
    for index, item in enumerate(_output(reply)):
        yield {"type": "response.output_item.done", "item": item, "output_index": index, "sequence_number": 0}
    yield {"type": "response.completed", "response": response(body, reply), "sequence_number": 0}


def _envelope(body: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {
        "id": _ID,
        "object": "response",
        "created_at": 0,
        "model": body.get("model", "scripted"),
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _output(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.tokens:
        text = {"type": "output_text", "text": "".join(reply.tokens), "annotations": [], "logprobs": []}
        items.append(
            {"type": "message", "id": _MESSAGE_ID, "role": "assistant", "status": "completed", "content": [text]}
        )
    return items + [
        {
            "type": "function_call",
            "id": f"fc_{call.id}",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        for call in reply.tool_calls
    ]
