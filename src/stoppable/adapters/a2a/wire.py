"""What arrives over HTTP, checked before the SDK reads it, and errors in the formats of the protocol."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from a2a.utils.errors import A2AError, InvalidParamsError, JSONParseError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

_DEPTH = 64  # protocol buffers allow 100 levels, and need some for themselves

_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
_SERVER_ERROR = 500
PARSE, REQUEST, PARAMS, INTERNAL = -32700, -32600, -32602, -32603


def parse_body(body: bytes) -> Any:
    """Return the JSON of a body, or raise an error of the protocol.

    Protocol buffers have no number that is not finite and no text that is not Unicode: the SDK would fail on them.
    """
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise JSONParseError(message=f"the body is not JSON: {error}"[:200]) from None
    _check(value, 0)
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _check(value: Any, depth: int) -> None:
    if depth > _DEPTH:
        raise InvalidParamsError(message=f"more than {_DEPTH} levels of nesting")
    match value:
        case str():
            _check_text(value)
        case bool() | None:
            pass
        case int() | float():
            if not _is_finite(value):
                raise InvalidParamsError(message="a number is too large")
        case dict():
            for name, item in value.items():
                _check_text(name)
                _check(item, depth + 1)
        case list():
            for item in value:
                _check(item, depth + 1)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParamsError(message="a text has a lone surrogate, which is not Unicode") from None


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


# What goes out


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as protocol buffers can hold it: what JSON cannot hold becomes text, bytes as base64."""
    if depth > _DEPTH:
        return _text(str(value))
    match value:
        case bool() | None:
            return value
        case str():
            return _text(value)
        case int() | float():
            return value if _is_finite(value) else str(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Mapping():
            return {_text(str(name)): plain(item, depth + 1) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item, depth + 1) for item in value]
    return _text(str(value))


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def rpc_error(request_id: Any, code: int, message: str, *, status: int = 200, data: Any = None) -> JSONResponse:
    """Return an error of JSON-RPC."""
    error = {"code": code, "message": _text(message)} | ({} if data is None else {"data": data})
    valid_id = request_id if isinstance(request_id, str | int | float) else None
    return JSONResponse({"jsonrpc": "2.0", "id": plain(valid_id), "error": error}, status)


def rpc_problem(request_id: Any, error: HTTPException | A2AError) -> JSONResponse:
    """Return, for JSON-RPC, why a request was refused before the SDK read it."""
    if isinstance(error, A2AError):
        return rpc_error(request_id, PARSE if isinstance(error, JSONParseError) else PARAMS, str(error))
    code = INTERNAL if error.status_code >= _SERVER_ERROR else REQUEST
    answer = rpc_error(
        request_id, code, error.detail, status=error.status_code, data={"status": status_of(error.status_code)}
    )
    answer.headers.update(error.headers or {})
    return answer


def rest_problem(error: HTTPException | A2AError) -> JSONResponse:
    """Return, for REST, why a request was refused before the SDK read it."""
    code, message = (400, str(error)) if isinstance(error, A2AError) else (error.status_code, error.detail)
    problem = {"code": code, "status": status_of(code), "message": _text(message)}
    return JSONResponse({"error": problem}, code, {} if isinstance(error, A2AError) else error.headers)


def status_of(code: int) -> str:
    """Return what gRPC calls a status of HTTP."""
    return _STATUS.get(code, "INTERNAL" if code >= _SERVER_ERROR else "INVALID_ARGUMENT")
