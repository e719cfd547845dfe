"""What is sent to a protocol: the body of a request, and the arguments of an agent from the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from stoppable.server.backend import Host
from stoppable.server.hosted_agents import Signature
from stoppable.server.responses import Problem, loads
from stoppable.server.schemas import check_depth

_MESSAGES = "messages"
CONVERSATION = ("conversation_id", "session_id", "thread_id")
"""The parameters of an agent that get the id of its conversation."""

M = TypeVar("M", bound=BaseModel)


async def read_model(host: Host, request: Request, model: type[M], default: bytes = b"") -> tuple[M, Any]:
    """Return the body of a request, checked, and as it was sent; ``default`` is the body of a request without one."""
    try:
        sent = check_depth(loads(await host.body(request) or default))
    except (ValueError, RecursionError) as error:
        raise Problem(400, "bad_request", f"the body is not JSON that can be read: {error}"[:200]) from None
    try:
        return model.model_validate(sent), sent
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"]) or "the body"
        raise invalid(f"{place}: {first['msg']}") from None


def invalid(message: str) -> Problem:
    """Return the error for a body that makes no sense."""
    return Problem(422, "invalid_argument", message)


def arguments_of(
    signature: Signature, text: str, messages: Sequence[Mapping[str, Any]], conversation: str | None
) -> Any:
    """Return the input of an agent: an object of keyword arguments, or a single argument.

    A text that is a JSON object of the agent's own parameters is its keyword arguments. Otherwise a parameter
    ``messages`` gets all messages, or else the first parameter the text. A parameter ``conversation_id``,
    ``session_id`` or ``thread_id`` gets the id of the conversation.
    """
    arguments = _object_in(text, signature)
    if arguments is None and signature.takes(_MESSAGES):
        arguments = {_MESSAGES: list(messages)}
    if arguments is None:
        if signature.first is None:
            arguments = {}
        elif not signature.takes(signature.first):
            return text  # it has no name that a caller could use
        else:
            arguments = {signature.first: text}
    if conversation is not None:
        further = (name for name in CONVERSATION if signature.takes(name))
        arguments = {**dict.fromkeys(further, conversation), **arguments}
    return arguments


def _object_in(text: str, signature: Signature) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = check_depth(loads(text.encode()))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value and signature.takes(*value) else None
