"""What a server answers: agents, changes of runs, the ends of runs, and the errors in responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, TypeVar

from stoppable import _json
from stoppable._core.values import Status
from stoppable.errors import (
    AgentNotFound,
    HoldNotFound,
    InvalidArgument,
    RunConflict,
    RunFailed,
    RunHeld,
    RunLost,
    RunNotFound,
    RunStopped,
    StoppableError,
    StoreError,
)
from stoppable.records import Hold, RunRecord, RunSummary, outcome_of


class ServerUnreachable(StoppableError, ConnectionError):
    """No server answered within ``retry_seconds``; it is unknown whether it received the request."""

    def __init__(self, url: str, detail: str = "") -> None:
        super().__init__(url, detail)
        self.url = url
        self.detail = detail

    def __str__(self) -> str:
        why = f" ({self.detail})" if self.detail else ""
        return (
            f"no stoppable server answers at {self.url}{why}: start one with `stoppable serve`, "
            "or say where it is with STOPPABLE_URL"
        )


class NotAllowed(StoppableError, PermissionError):
    """The server requires a key, or the key lacks the permission."""


class ServerError(StoppableError):
    """Unexpected response from the server; ``status`` and ``code`` are those of the response."""

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message, status, code)
        self.status = status
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """An agent that the server can start: its name, its description, and the JSON Schema of its input."""

    name: str
    description: str = ""
    kind: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Return it from its JSON form."""
        return cls(
            name=str(body["name"]),
            description=str(body.get("description", "")),
            kind=str(body.get("kind", "")),
            input=dict(body.get("input") or {}),
        )


T = TypeVar("T")


class NotStopped(StoppableError):
    """The run was not stopped, so there is no receipt."""


SHAPE_ERRORS = (LookupError, TypeError, ValueError, AttributeError)
"""The errors that reading malformed data may raise."""

_MESSAGE_ERRORS: Mapping[str, type[StoppableError]] = {
    "agent_not_found": AgentNotFound,
    "not_stopped": NotStopped,
    "store_unavailable": StoreError,
    "worker_fenced": StoreError,
}
"""The errors that need only a message, by code."""

_NOT_OURS = "this does not look like a stoppable server: check STOPPABLE_URL"


def parse(status: int, content: bytes) -> Any:
    """Return JSON, or raise an error that says what to check."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ServerError(f"unexpected response of status {status}: it is not JSON; {_NOT_OURS}", status) from None


def read(status: int, content: bytes, build: Callable[[Any], T]) -> T:
    """Return what ``build`` makes of the JSON, or raise an error that says what to check."""
    body = parse(status, content)
    try:
        return build(body)
    except StoppableError:
        raise
    except SHAPE_ERRORS:
        raise ServerError(f"unexpected response of status {status}; {_NOT_OURS}", status) from None


def list_in(body: Any, name: str) -> Sequence[Any]:
    """Return a list out of an answer."""
    items = body.get(name) if isinstance(body, Mapping) else None
    if not isinstance(items, list):
        raise ServerError(f"unexpected response without {name}; {_NOT_OURS}", HTTPStatus.OK)
    return items


def parse_hold(body: Mapping[str, Any]) -> Hold:
    """Return a hold."""
    return _json.load(Hold, body)


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
    if code in _MESSAGE_ERRORS:
        return _MESSAGE_ERRORS[code](message)
    if status == HTTPStatus.UNAUTHORIZED:
        return NotAllowed(f"{message}; set STOPPABLE_API_KEY to the key of the server")
    if status in {HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}:
        return NotAllowed(message)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return InvalidArgument(message)
    return ServerError(message, status, code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change on the server: a run that changed, or what is in flight."""

    run: RunSummary | None = None
    in_flight: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """The open boundaries of live runs, by run id; None if unknown."""
    is_all: bool = False
    """Whether live runs that ``in_flight`` does not name have nothing in flight."""
    is_reset: bool = False
    """Whether something may have been missed: list the runs now."""


def change_of(fields: Mapping[str, str]) -> Change | None:
    """Return the change in a message, or None if it is about the stream itself or from a newer version."""
    try:
        data = json.loads(fields.get("data", "null"))
        match fields.get("event"):
            case "hello":
                return Change(is_reset=True) if data["reset"] else None
            case "run":
                return Change(run=_json.load(RunSummary, data))
            case "flight":
                flights = {name: None if labels is None else tuple(labels) for name, labels in data["runs"].items()}
                return Change(in_flight=flights, is_all=data["all"])
            case _:
                return None
    except SHAPE_ERRORS:
        raise StoppableError("the changes of runs cannot be read: is this a stoppable server?") from None


STOP_ON_EXIT_SECONDS = 5.0
"""How long leaving a block may take to stop its run."""

_UNCLEAR = (ServerUnreachable, ServerError, StoreError)  # a proxy that answers 504 has forwarded the request


def result_of(record: RunRecord) -> Any:
    """Return the value of a run that has ended, or raise RunStopped, RunFailed or RunLost."""
    outcome = outcome_of(record)
    match outcome.status:
        case Status.COMPLETED:
            return outcome.result
        case Status.FAILED:
            raise RunFailed(record.id, outcome) from outcome.error
        case Status.LOST:
            raise RunLost(record.id, outcome)
        case _:
            raise RunStopped(record.id, outcome)


def may_have_started(error: BaseException) -> bool:
    """Return whether a start that failed like this may have reached the server: then the run must be stopped."""
    return isinstance(error, _UNCLEAR) or not isinstance(error, Exception)


def left_because(error: BaseException) -> str:
    """Return the reason of the stop of a run whose block was left."""
    return f"its block was left by {type(error).__name__}: {error}".removesuffix(": ")[:500]
