"""JSON responses, and errors in one shape: ``{"error": {"code", "message"}}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stoppable._json import shallow
from stoppable.errors import (
    Fenced,
    HoldNotFound,
    InvalidArgument,
    RunConflict,
    RunHeld,
    RunNotFound,
    StoppableError,
    StoreError,
)

# Responses are private, and never markup.
PRIVATE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def dumps(value: Any) -> bytes:
    """Return the JSON of a value that may contain records."""
    try:
        return orjson.dumps(value, shallow, orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # an integer of more than 64 bits, or a lone surrogate
        return json.dumps(value, default=shallow).encode()


def loads(text: bytes) -> Any:
    """Parse JSON; unlike json, orjson accepts neither NaN nor lone surrogates."""
    value = orjson.loads(text)
    # orjson turns an integer of more than 64 bits into a float, which would change an id.
    return json.loads(text) if _LONG_NUMBER.search(text) else value


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def one_line(text: bytes) -> bytes:
    """Escape Unicode line separators, which many clients treat as the end of a line."""
    for raw, escaped in _LINE_BREAKS:
        if raw in text:
            text = text.replace(raw, escaped)
    return text


_LINE_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\u0085\u2028\u2029")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON body of values and records."""
    return Response(dumps(value), status, {**PRIVATE, **(headers or {})}, "application/json")


_RETRY = {"Retry-After": "1"}


class Problem(HTTPException):
    """An error response, with a code for programs."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.more = more

    def to_response(self) -> Response:
        """Return it as ``{"error": {"code", "message"}}``."""
        error = {"code": self.code, "message": self.detail, **self.more}
        return json_response({"error": error}, self.status_code, self.headers)


def problem_of(error: StoppableError, *, to_operator: bool, owner: str | None = None) -> Problem:
    """Return the error response for an exception, as an operator or an owner may see it.

    Owners see neither details of the store, which are in the log, nor the reason of a hold that is not only theirs.
    """
    message = str(error)
    match error:
        case RunNotFound():
            return Problem(404, "run_not_found", message)
        case HoldNotFound():
            return Problem(404, "hold_not_found", message)
        case RunConflict():
            return Problem(409, "run_conflict", message)
        case RunHeld():
            is_visible = to_operator or (owner is not None and error.owner == owner)
            refusal = error if is_visible else RunHeld(error.hold_id)
            return Problem(423, "run_held", str(refusal), holdId=refusal.hold_id, reason=refusal.reason)
        case InvalidArgument():
            return Problem(422, "invalid_argument", message)
        case StoreError():
            detail = message if to_operator else "the store does not answer: try again"
            return Problem(503, "store_unavailable", detail, _RETRY)
        case Fenced():
            return Problem(503, "worker_fenced", message, _RETRY)
        case _:
            return Problem(500, "internal", "internal error: see the log of the server")


def problem_of_validation(error: RequestValidationError) -> Problem:
    """Return what is wrong with a request, without repeating its values."""
    return Problem(422, "invalid_argument", "; ".join(_describe_error(one) for one in error.errors()[:5]))


def _describe_error(error: Mapping[str, Any]) -> str:
    place: Sequence[Any] = error.get("loc", ())
    if error.get("type") == "json_invalid":
        return f"the body is not JSON: {error.get('ctx', {}).get('error', 'it cannot be read')} (character {place[-1]})"
    # Callers know the fields of a body by name, so the location omits "body".
    location = place[1:] if len(place) > 1 and place[0] == "body" else place
    where = ".".join(str(part)[:60] for part in location)
    return f"{where}: {error.get('msg', 'is not valid')}"


def problem_of_status(status: int, detail: str, headers: Mapping[str, str] | None) -> Problem:
    """Return the error response for an exception of the framework."""
    code = {404: "not_found", 405: "method_not_allowed", 401: "unauthenticated", 403: "forbidden", 400: "bad_request"}
    return Problem(status, code.get(status, "error"), detail, headers)
