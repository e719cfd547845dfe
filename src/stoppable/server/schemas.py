"""What requests and responses look like: bodies as pydantic models, and the schemas of the OpenAPI document."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from stoppable import _json
from stoppable._core.stop import Receipt
from stoppable._core.values import RUN_ID as ONE_ID
from stoppable._core.values import Limits, Policy, Reason
from stoppable.records import AuditEntry, Hold, IfUnknown, RunRecord, RunSummary, Selector

ModeName: TypeAlias = Literal["cooperative", "graceful", "immediate", "kill"]

_MONTH = 2_592_000.0  # about the longest timer that the system supports
_DEPTH = 64


def _whole(value: Any) -> Any:
    """Return an integer, also from 3.0: JSON has only one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


RUN_ID = f"^{ONE_ID}$"

# Shorter than an id may be, because the ids of owners get a tag.
RunId: TypeAlias = Annotated[str, StringConstraints(pattern=RUN_ID, max_length=115)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Key: TypeAlias = Annotated[str, StringConstraints(max_length=4096)]
LabelText: TypeAlias = Annotated[str, StringConstraints(max_length=256)]
Labels: TypeAlias = Annotated[dict[LabelText, LabelText], Field(max_length=32)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=_MONTH, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole)]


def check_depth(value: Any) -> Any:
    """Return a value, or raise ValueError if it is nested too deeply."""
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError(f"more than {_DEPTH} levels of nesting")


class _RequestBody(BaseModel):
    # Unknown names are refused: a selector with a misspelled name would match more runs than intended.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, frozen=True)


class LimitsBody(_RequestBody):
    """The limits of a run and its subtree."""

    seconds: Seconds | None = None
    boundaries: Annotated[dict[LabelText, Count], Field(max_length=32)] = {}

    def to_limits(self) -> Limits:
        """Return them in the form that the supervisor expects."""
        return Limits(seconds=self.seconds, boundaries=self.boundaries)


_POLICY = Policy()


class PolicyBody(_RequestBody):
    """How many seconds each rung of the ladder lasts."""

    grace: Seconds = _POLICY.grace
    interrupt: Seconds = _POLICY.interrupt
    cancel: Seconds = _POLICY.cancel
    kill: Seconds = _POLICY.kill
    blind_grace: Seconds = _POLICY.blind_grace

    def to_policy(self) -> Policy:
        """Return it in the form that the supervisor expects."""
        return Policy(
            grace=self.grace,
            interrupt=self.interrupt,
            cancel=self.cancel,
            kill=self.kill,
            blind_grace=self.blind_grace,
        )


class StartBody(_RequestBody):
    """A start. ``input`` is an object of keyword arguments for the agent, or any other value as its single argument."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {"agent": "research", "input": {"question": "why is the sky blue?"}, "labels": {"team": "physics"}},
                {"agent": "research", "input": "why is the sky blue?", "runId": "made-by-the-browser-1"},
            ]
        }
    )

    agent: Text
    input: Annotated[Any, AfterValidator(check_depth)] = None
    owner: Text | None = None
    labels: Labels = {}
    run_id: RunId | None = None
    key: Key | None = None
    limits: LimitsBody | None = None
    isolation: Literal["auto", "task", "thread", "process"] = "auto"
    on_disconnect: Literal["keep", "stop"] = "keep"
    policy: PolicyBody | None = None


class StopBody(_RequestBody):
    """A stop of one run and its subtree."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"mode": "graceful", "reason": "wrong question"}, {}]}
    )

    mode: ModeName = "graceful"
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None
    grace: Seconds | None = None


class SelectorBody(_RequestBody):
    """The runs that match all given criteria. ``all: true`` selects every run."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["owner"], "properties": {"owner": {"type": "string"}}},
                {"required": ["labels"], "properties": {"labels": {"minProperties": 1}}},
                {"required": ["agent"], "properties": {"agent": {"type": "string"}}},
                {"required": ["key"], "properties": {"key": {"type": "string"}}},
                {"required": ["all"], "properties": {"all": {"const": True}}},
            ]
        }
    )

    owner: Text | None = None
    labels: Labels = {}
    agent: Text | None = None
    key: Key | None = None
    all: bool = False

    def to_selector(self, owner: str | None) -> Selector:
        """Return it in the form that the store expects, restricted to an owner if one is given."""
        selector = Selector(owner=self.owner, labels=self.labels, agent=self.agent, key=self.key, all=self.all)
        return selector if owner is None else replace(selector, owner=owner)


class StopsBody(_RequestBody):
    """A stop of every run that a selector matches, or with ``dryRun`` a preview.

    A stop of a ``key`` (and an owner at most) that has had no run yet waits for the first one, unless ``ifUnknown``
    says ``ignore``. With ``hold`` it also waits, a moment, for the next run of a key that has had some.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={
            "examples": [
                {"selector": {"labels": {"team": "physics"}}, "dryRun": True},
                {"selector": {"key": "chat:ada/42"}, "reason": "enough"},
                {"selector": {"owner": "ada"}, "mode": "immediate", "reason": "budget is used up", "hold": True},
            ]
        }
    )

    selector: SelectorBody
    mode: ModeName = "graceful"
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None
    grace: Seconds | None = None
    dry_run: bool = False
    hold: bool = False
    if_unknown: IfUnknown = None


_NAMES = {"RunRecord": "Run", "OutcomeRecord": "Outcome", "ErrorRecord": "Failure"}


@cache
def schema_of(kind: type) -> type[BaseModel]:
    """Return the schema of a dataclass in its JSON form; every name is required."""
    name = _NAMES.get(kind.__name__, kind.__name__)
    fields: dict[str, Any] = {wire: (_type_of(hint), ...) for _, wire, hint in _json._fields(kind)}
    doc = (kind.__doc__ or "").split("\n\n")[0]
    model: type[BaseModel] = create_model(name, __doc__=doc, **fields)
    return model


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


class StartableAgent(BaseModel):
    """An agent that can be started."""

    name: str
    description: str
    kind: str
    parameters: list[Parameter]
    input: dict[str, Any] = Field(description="The JSON Schema of an input that is an object of keyword arguments.")


class AgentList(BaseModel):
    """The agents that can be started."""

    agents: list[StartableAgent]


class Caller(BaseModel):
    """Who is calling, and what this caller may do."""

    owner: str | None = Field(description="Whose runs it sees; null if it sees all.")
    seesAll: bool  # noqa: N815 - as on the wire
    actor: str | None = Field(description="Its name in receipts and in the audit.")
    scopes: list[str] = Field(examples=[["read", "stop"]])


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


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    handler: Callable[..., Any],
    summary: str,
    responses: dict[int | str, dict[str, Any]],
    status: int | None = None,
) -> None:
    """Add a route whose handler makes the response itself; ``status`` is documented if it is not 200."""
    router.add_api_route(
        path,
        handler,
        methods=[method],
        summary=summary,
        responses=responses,
        status_code=status,
        response_class=Response,
    )


def answer(model: type[BaseModel] | None, description: str, **headers: str) -> dict[str, Any]:
    """Return one response that a route may give."""
    response: dict[str, Any] = {"description": description}
    if model is not None:
        response["model"] = model
    if headers:
        response["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return response
