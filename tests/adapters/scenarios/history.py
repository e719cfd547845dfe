"""The messages that a model gets, and whether a provider would refuse them."""

from __future__ import annotations

from typing import Any


def shape(messages: list[dict[str, Any]]) -> str:
    """Write a conversation in short: u is the user, A the assistant with so many calls, t the result of a call."""
    words = []
    for message in messages:
        match message["role"]:
            case "user":
                words.append("u")
            case "tool":
                words.append("t")
            case "assistant":
                calls = message.get("tool_calls") or ()
                words.append("A" + ("+text" if message.get("content") else "") + (f"[{len(calls)}]" if calls else ""))
    return " ".join(words)


def is_valid(messages: list[dict[str, Any]]) -> bool:
    """Return whether every tool call is answered before anything else is said, as providers demand."""
    unanswered: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in unanswered:
                return False
            unanswered.remove(message["tool_call_id"])
        elif unanswered:
            return False
        unanswered |= {call["id"] for call in message.get("tool_calls") or ()}
    return not unanswered


def texts_of(messages: list[dict[str, Any]], role: str) -> list[str]:
    """Return what a role has said, also if it is in parts."""
    return [_text(message.get("content")) for message in messages if message["role"] == role]


def answers_in(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Return the text of each answer to a tool call, by the name of the tool."""
    names = {call["id"]: call["function"]["name"] for message in messages for call in message.get("tool_calls") or ()}
    return {
        names[message["tool_call_id"]]: _text(message["content"]) for message in messages if message["role"] == "tool"
    }


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""
