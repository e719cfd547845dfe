"""Which responses the OpenAPI document promises."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from stoppable.server.schemas import ErrorBody

_ERRORS = {
    400: "The request cannot be read.",
    401: "No key, or a wrong one.",
    403: "A scope is missing, or a web page of another origin asks.",
    404: "There is no such thing, or it is not yours.",
    408: "The body did not arrive in time.",
    409: "It does not go with what is there: the id belongs to another run, or nobody stopped the run.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Something in the request makes no sense; the message says what.",
    423: "A hold refuses this start; `holdId` names it, `reason` says why.",
    429: "Too many streams are open.",
    431: "The headers are too large.",
    503: "The store does not answer, or the server is shutting down. Nothing is promised: ask again.",
}

ALWAYS = (400, 401, 403, 422, 431, 503)
BODY = (408, 413, 415)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors that a route may answer with, besides those that all may."""
    return {status: {"model": ErrorBody, "description": _ERRORS[status]} for status in sorted({*ALWAYS, *statuses})}


def answer(model: type[BaseModel] | None, description: str, **headers: str) -> dict[str, Any]:
    """Return one response that a route may give."""
    made: dict[str, Any] = {"description": description}
    if model is not None:
        made["model"] = model
    if headers:
        made["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return made
