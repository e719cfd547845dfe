"""Reads responses of the server, and raises the errors that they contain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from stoppable import _json
from stoppable.client.errors import NotAllowed, ServerError
from stoppable.errors import (
    AgentNotFound,
    HoldNotFound,
    InvalidArgument,
    RunConflict,
    RunHeld,
    RunNotFound,
    StoppableError,
    StoreError,
)
from stoppable.records import Hold

T = TypeVar("T")


class NotStopped(StoppableError):
    """The run was not stopped, so there is no receipt."""


SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError)
"""The errors that reading malformed data may raise."""

_SAID: Mapping[str, type[StoppableError]] = {
    "agent_not_found": AgentNotFound,
    "not_stopped": NotStopped,
    "store_unavailable": StoreError,
    "worker_fenced": StoreError,
}
"""The errors that need only a message, by code."""

_NOT_OURS = "this does not look like a stoppable server: check STOPPABLE_URL"


def parsed(status: int, content: bytes) -> Any:
    """Return JSON, or raise an error that says what to check."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ServerError(f"unexpected response of status {status}: it is not JSON; {_NOT_OURS}", status) from None


def read(status: int, content: bytes, made: Callable[[Any], T]) -> T:
    """Return what ``made`` makes of the JSON, or raise an error that says what to check."""
    body = parsed(status, content)
    try:
        return made(body)
    except StoppableError:
        raise
    except SHAPE_ERRORS:
        raise ServerError(f"unexpected response of status {status}; {_NOT_OURS}", status) from None


def listed(body: Any, name: str) -> Sequence[Any]:
    """Return a list out of an answer."""
    found = body.get(name) if isinstance(body, Mapping) else None
    if not isinstance(found, list):
        raise ServerError(f"unexpected response without {name}; {_NOT_OURS}", HTTPStatus.OK)
    return found


def hold(body: Mapping[str, Any]) -> Hold:
    """Return a hold; what a selector calls an agent is the name of a run in a record."""
    selector = dict(body["selector"])
    selector["name"] = selector.pop("agent", None)
    return _json.load(Hold, {**body, "selector": selector})


def check(subject: str, status: int, content: bytes) -> None:
    """Raise the error in a response, if any; ``subject`` is the id that the request was about."""
    if status < HTTPStatus.MULTIPLE_CHOICES:  # a server that redirects has done nothing
        return
    try:
        body = json.loads(content)["error"]
        code, message = str(body["code"]), str(body["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ServerError(f"unexpected response of status {status}; {_NOT_OURS}", status) from None
    if code == "not_found" and not subject:
        raise ServerError(f"the server has no such path; {_NOT_OURS}", status, code)
    raise _error(subject, status, code, message, body)


def _error(subject: str, status: int, code: str, message: str, body: Mapping[str, Any]) -> StoppableError:
    match code:
        case "run_not_found":
            return RunNotFound(subject)
        case "not_found" if subject:  # an id that no path of the server takes
            return RunNotFound(subject)
        case "hold_not_found":
            return HoldNotFound(subject)
        case "run_conflict":
            return RunConflict(subject)
        case "run_held":
            return RunHeld(str(body.get("holdId", "")), str(body.get("reason", "")))
    if code in _SAID:
        return _SAID[code](message)
    if status == HTTPStatus.UNAUTHORIZED:
        return NotAllowed(f"{message}; set STOPPABLE_API_KEY to the key of the server")
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
        return NotAllowed(message)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidArgument(message)
    return ServerError(message, status, code)
