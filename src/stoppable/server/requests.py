"""The bodies of requests, as pydantic models."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from stoppable._core import ids
from stoppable._core.policy import Limits, Policy
from stoppable.records import Selector

ModeName: TypeAlias = Literal["cooperative", "graceful", "immediate", "kill"]

_MONTH = 2_592_000.0  # about the longest timer that the system supports
_DEPTH = 64


def _whole(value: Any) -> Any:
    """Return an integer, also from 3.0: JSON has only one kind of number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


RUN_ID = f"^{ids.RUN_ID}$"

# Shorter than an id may be, because the ids of owners get a tag.
RunId: TypeAlias = Annotated[str, StringConstraints(pattern=RUN_ID, max_length=115)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Key: TypeAlias = Annotated[str, StringConstraints(max_length=4096)]
LabelText: TypeAlias = Annotated[str, StringConstraints(max_length=256)]
Labels: TypeAlias = Annotated[dict[LabelText, LabelText], Field(max_length=32)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=_MONTH, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole)]


def _not_too_deep(value: Any) -> Any:
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


class _Body(BaseModel):
    # Unknown names are refused: a selector with a misspelled name would match more runs than intended.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, frozen=True)


class LimitsBody(_Body):
    """The limits of a run and its subtree."""

    seconds: Seconds | None = None
    boundaries: Annotated[dict[LabelText, Count], Field(max_length=32)] = {}

    def to_limits(self) -> Limits:
        """Return them in the form that the supervisor expects."""
        return Limits(seconds=self.seconds, boundaries=self.boundaries)


_POLICY = Policy()


class PolicyBody(_Body):
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


class StartBody(_Body):
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
    input: Annotated[Any, AfterValidator(_not_too_deep)] = None
    owner: Text | None = None
    labels: Labels = {}
    run_id: RunId | None = None
    key: Key | None = None
    limits: LimitsBody | None = None
    isolation: Literal["auto", "task", "thread", "process"] = "auto"
    on_disconnect: Literal["keep", "stop"] = "keep"
    policy: PolicyBody | None = None


class StopBody(_Body):
    """A stop of one run and its subtree."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        json_schema_extra={"examples": [{"mode": "graceful", "reason": "wrong question"}, {}]}
    )

    mode: ModeName = "graceful"
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None
    grace: Seconds | None = None


class SelectorBody(_Body):
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
        chosen = Selector(owner=self.owner, labels=self.labels, name=self.agent, key=self.key, all=self.all)
        return chosen if owner is None else replace(chosen, owner=owner)


class StopsBody(_Body):
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
    if_unknown: Literal["hold", "ignore"] | None = None

    @property
    def waits_for_run(self) -> bool | None:
        """Whether a stop of a key waits for its next run; None if only for the first."""
        return None if self.if_unknown is None else self.if_unknown == "hold"
