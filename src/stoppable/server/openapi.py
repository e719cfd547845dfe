"""The OpenAPI document: schemas generated from the dataclasses, so that both agree, and the responses."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import BaseModel, Field, create_model

from stoppable import _json
from stoppable._core.reason import Reason
from stoppable._core.stop import Receipt
from stoppable.records import AuditEntry, Hold, RunRecord, RunSummary

_NAMES = {"RunRecord": "Run", "OutcomeRecord": "Outcome", "ErrorRecord": "Failure"}


@cache
def schema_of(kind: type) -> type[BaseModel]:
    """Return the schema of a dataclass in its JSON form; every name is required."""
    name = _NAMES.get(kind.__name__, kind.__name__)
    fields: dict[str, Any] = {wire: (_type_of(hint), ...) for _, wire, hint in _json._fields(kind)}
    doc = (kind.__doc__ or "").split("\n\n")[0]
    made: type[BaseModel] = create_model(name, __doc__=doc, **fields)
    return made


def _type_of(hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(_type_of(arg) for arg in args)]  # noqa: UP007 - from a tuple
    if origin is tuple:
        return list[_type_of(args[0])]  # type: ignore[misc]
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, _type_of(args[1])]  # type: ignore[misc]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return schema_of(hint)
    return hint


class HoldSelector(BaseModel):
    """Which new runs a hold refuses."""

    owner: str | None
    labels: dict[str, str]
    agent: str | None
    key: str | None
    all: bool


if TYPE_CHECKING:
    Run: TypeAlias = BaseModel
    Summary: TypeAlias = BaseModel
    RunReceipt: TypeAlias = BaseModel
    AuditLine: TypeAlias = BaseModel
    PlacedHold: TypeAlias = BaseModel
else:
    Run = schema_of(RunRecord)
    Summary = schema_of(RunSummary)
    RunReceipt = schema_of(Receipt)
    AuditLine = schema_of(AuditEntry)
    PlacedHold = create_model(
        "Hold",
        __doc__=Hold.__doc__,
        id=(str, ...),
        selector=(HoldSelector, ...),
        reason=(schema_of(Reason), ...),
        createdAt=(float, ...),
    )


class Runs(BaseModel):
    """A page of runs, newest first; ``cursor`` begins the next page."""

    runs: list[Summary]
    cursor: str | None


class Tree(BaseModel):
    """A run and all its descendants in short, parents before children."""

    runs: list[Summary]


class Stopped(BaseModel):
    """What a stop changed; ``receipt`` says what was in flight and, once final, what happened to every node."""

    runId: str  # noqa: N815 - as on the wire
    status: str = Field(examples=["stopping"])
    receipt: RunReceipt


class BulkStopped(BaseModel):
    """The receipts of the matching runs, topmost only, and the hold that was placed."""

    dryRun: bool  # noqa: N815 - as on the wire
    receipts: list[RunReceipt]
    hold: PlacedHold | None
    waitsUntil: float | None = Field(  # noqa: N815 - as on the wire
        description="If there was no live run of a key: until then, the next one is born stopped."
    )


class Holds(BaseModel):
    """The holds that are in force, oldest first."""

    holds: list[PlacedHold]


class Audit(BaseModel):
    """Who did what; ``after`` begins the next page."""

    entries: list[AuditLine]
    after: int | None


class Parameter(BaseModel):
    """The input of an agent."""

    name: str
    type: str | None
    required: bool


class AgentInfo(BaseModel):
    """An agent that can be started."""

    name: str
    description: str
    kind: str
    parameters: list[Parameter]
    input: dict[str, Any] = Field(description="The JSON Schema of an input that is an object of keyword arguments.")


class AgentList(BaseModel):
    """The agents that can be started."""

    agents: list[AgentInfo]


class Health(BaseModel):
    """The state of the server."""

    status: str = Field(examples=["ok"])


class ErrorInfo(BaseModel):
    """An error: a code for programs, and a message for people."""

    code: str = Field(examples=["run_not_found"])
    message: str = Field(examples=["there is no run 'x': list the runs to see their ids"])
    holdId: str | None = Field(None, description="The hold that refused a start.")  # noqa: N815 - as on the wire
    reason: str | None = Field(None, description="Why it was placed.")


class ErrorBody(BaseModel):
    """Every error has this form."""

    error: ErrorInfo


# The documented responses

_ERRORS = {
    400: "The request cannot be read.",
    401: "No key, or a wrong one.",
    403: "A scope is missing, or the request comes from a web page of another origin.",
    404: "There is no such thing, or it is not yours.",
    408: "The body did not arrive in time.",
    409: "The id belongs to another run, or the run was not stopped.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "Something in the request makes no sense; the message says what.",
    423: "A hold refuses this start; `holdId` names it, `reason` says why.",
    429: "Too many streams are open, or the owner has too many live runs: ask later.",
    431: "The headers are too large.",
    503: "The store does not answer, or the server is shutting down. Nothing is promised: ask again.",
}

ALWAYS = (400, 401, 403, 422, 431, 503)
BODY = (408, 413, 415)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route, in addition to those that all routes have."""
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
