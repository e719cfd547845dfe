"""What is kept of a run: its record, its events, and the stops, holds and audit entries about it.

Every time in here is of the store's clock, in seconds since 1970; ``_json`` gives each its JSON form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, Self, TypeAlias

from stoppable import _json
from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Limits, Mode, Outcome, Policy, Reason, Rung, Status, check_labels
from stoppable.errors import AgentError, InvalidArgument

VERSION = 1
"""Of the JSON form of a record."""

ERROR_LENGTH = 500  # in a list


def check_key(key: object) -> None:
    """Raise an error if a value is not a valid conversation key."""
    if key is not None and not isinstance(key, str):
        raise InvalidArgument(f"invalid key {str(key)[:40]!r}: use a string")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopIntent:
    """A stop as the store keeps it: durable before workers are notified, and its mode only rises (G6, G14)."""

    mode: Mode = Mode.GRACEFUL
    reason: Reason = field(default_factory=Reason)
    grace: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """The error of a body, as text: an exception itself does not outlive its process."""

    type: str
    message: str
    trace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRecord:
    """How a run ended; ``omitted`` says why a result or partial is missing."""

    status: Status
    reason: Reason | None = None
    rung: Rung | None = None
    clean: bool | None = True
    result: Any = None
    partial: Any = None
    error: ErrorRecord | None = None
    omitted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as the store keeps it."""

    id: str
    name: str
    parent_id: str | None = None
    root_id: str = ""
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    """The key of its conversation; all turns of a conversation have the same key. Not inherited."""
    status: Status = Status.PENDING
    worker: str = ""
    epoch: int = 1
    isolation: str = "auto"
    on_disconnect: str = "keep"
    limits: Limits | None = None
    policy: Policy = field(default_factory=Policy)
    input: Any = None
    """The arguments that it was started with, by name; ``omitted`` lists those that are missing."""
    omitted: Mapping[str, str] = field(default_factory=dict)
    """Why an argument is not in the input."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Facts from ``Run.annotate``, such as ids in other systems."""
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    ended_late: float | None = None
    """When a lost run was later seen to end."""
    stop: StopIntent | None = None
    stop_requested_at: float | None = None
    acknowledged: Mode | None = None
    """The mode of the last acknowledged stop."""
    outcome: OutcomeRecord | None = None
    receipt: Receipt | None = None
    last_event: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.root_id:
            object.__setattr__(self, "root_id", self.id)

    @property
    def over(self) -> bool:
        """Whether its status is terminal."""
        return self.status.terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class Climb:
    """A rung of the ladder, and when it will be or was climbed."""

    rung: Rung
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list, without its input and output; the record has those."""

    id: str
    name: str
    parent_id: str | None
    root_id: str
    owner: str | None
    labels: Mapping[str, str]
    key: str | None = None
    status: Status
    worker: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    ended_late: float | None
    """When a lost run was later seen to end."""
    mode: Mode | None
    """The mode of its stop, if it was stopped."""
    reason: Reason | None
    stop_requested_at: float | None
    acknowledged_at: float | None
    delivered_at: float | None
    in_flight: tuple[str, ...] | None
    """Its open boundaries, or None if they are unknown."""
    ladder: tuple[Climb, ...]
    """When the rungs of its stop will be climbed; once it has ended, the rungs that were climbed."""
    rung: Rung | None
    clean: bool | None
    error: str | None

    @classmethod
    def of(cls, record: RunRecord) -> RunSummary:
        """Return the summary of a record."""
        stop, outcome, receipt = record.stop, record.outcome, record.receipt
        error = None if outcome is None else outcome.error
        reason = None if outcome is None else outcome.reason
        if reason is None and stop is not None:
            reason = stop.reason  # not delivered, or not yet
        return cls(
            id=record.id,
            name=record.name,
            parent_id=record.parent_id,
            root_id=record.root_id,
            owner=record.owner,
            labels=record.labels,
            key=record.key,
            status=record.status,
            worker=record.worker,
            created_at=record.created_at,
            started_at=record.started_at,
            ended_at=record.ended_at,
            ended_late=record.ended_late,
            mode=None if stop is None else stop.mode,
            reason=reason,
            stop_requested_at=record.stop_requested_at,
            acknowledged_at=None if receipt is None else receipt.acknowledged_at,
            delivered_at=None if receipt is None else receipt.delivered_at,
            in_flight=() if receipt is None or record.over else receipt.in_flight,
            ladder=() if receipt is None else _climbs(receipt),
            rung=None if outcome is None else outcome.rung,
            clean=None if outcome is None else outcome.clean,
            error=None if error is None else f"{error.type}: {error.message}"[:ERROR_LENGTH],
        )

    @property
    def over(self) -> bool:
        """Whether its status is terminal."""
        return self.status.terminal


def _climbs(receipt: Receipt) -> tuple[Climb, ...]:
    began = receipt.requested_at
    return () if began is None else tuple(Climb(rung=step.rung, at=began + step.after) for step in receipt.ladder)


_FIELDS = tuple(one.name for one in fields(RunRecord))
_values_of = attrgetter(*_FIELDS)
SETTERS: Mapping[str, Callable[[RunRecord, Any], None]] = {name: getattr(RunRecord, name).__set__ for name in _FIELDS}
"""Sets the fields of a new record, in order; much faster than the constructor, and a bulk stop makes thousands."""


def replace_fields(record: RunRecord, **changes: Any) -> RunRecord:
    """Return a record with some fields changed, as ``dataclasses.replace`` does."""
    copy = object.__new__(RunRecord)
    for set_, value in zip(SETTERS.values(), _values_of(record), strict=True):
        set_(copy, value)
    for name, value in changes.items():
        SETTERS[name](copy, value)
    return copy


def outcome_of(record: RunRecord) -> Outcome[Any]:
    """Return the outcome of a run that has ended from its record."""
    stored = record.outcome
    assert stored is not None, "it is over"
    error = None
    if stored.error is not None:
        error = AgentError(f"{stored.error.type}: {stored.error.message}")
        if stored.error.trace:
            error.add_note(stored.error.trace)
    return Outcome(
        stored.status,
        stored.reason,
        stored.rung,
        stored.clean,
        stored.result,
        stored.partial,
        error,
        record.ended_at or 0.0,
    )


class EventType(StrEnum):
    """The kind of an event."""

    STATUS = "status"
    PROGRESS = "progress"
    PARTIAL = "partial"
    ANNOTATED = "annotated"
    """Facts about the run were noted (``Run.annotate``)."""
    ENTERED = "entered"
    LEFT = "left"
    LOG = "log"
    TRUNCATED = "truncated"
    """The log is full: from here on only statuses are kept."""
    LATE = "late"
    """A report about a run that had ended; it changes nothing."""
    DONE = "done"
    """The last event of a run's life; carries its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a run's log; the sequence is dense and starts at 1."""

    run_id: str
    seq: int
    at: float
    type: EventType
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeEvent(Event):
    """One event of a tree, in store order; ``place`` is where a reader resumes."""

    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An event before the store has numbered it."""

    type: EventType
    data: Mapping[str, Any] = field(default_factory=dict)
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """The runs of a bulk stop or a hold: those that match all given criteria; every run only with ``all=True``."""

    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    key: str | None = None
    all: bool = False

    def __post_init__(self) -> None:
        if not (self.labels or self.all) and self.owner is self.agent is self.key is None:
            raise InvalidArgument(
                "an empty selector: give an owner, labels, an agent or a key, or all=True to mean every run"
            )
        check_labels(self.labels)
        check_key(self.key)
        object.__setattr__(self, "labels", dict(self.labels))  # a copy: the caller may change its own

    @property
    def is_conversation(self) -> bool:
        """Whether it selects the runs of one key, with or without an owner."""
        return self.key is not None and self.agent is None and not self.labels

    def matches(self, *, owner: str | None, labels: Mapping[str, str], agent: str, key: str | None) -> bool:
        """Return whether a run with these properties matches."""
        return (
            (self.owner is None or self.owner == owner)
            and (self.agent is None or self.agent == agent)
            and (self.key is None or self.key == key)
            and (not self.labels or all(labels.get(key) == value for key, value in self.labels.items()))
        )


IfUnknown: TypeAlias = Literal["wait", "ignore"] | None
"""What a stop does that selects no run: wait for one, nothing, or (None) wait only for the first run of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A stop, from the caller to the store: what to stop, how, and what else it asks for (see Store.request_stop)."""

    target: str | Selector
    """The id of a run, or a selector of live runs."""
    intent: StopIntent = field(default_factory=StopIntent)
    owner: str | None = None
    """The only owner whose runs it may stop; None for every owner."""
    hold: bool = False
    """Whether it also refuses new starts that its selector matches."""
    dry_run: bool = False
    if_unknown: IfUnknown = "ignore"
    idempotency_key: str | None = None
    asked_at: float | None = None
    """When the stop was requested, if runs were stopped before the store got it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Refuses new starts that a selector matches, until it is released."""

    id: str
    selector: Selector
    reason: Reason
    created_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what to which runs, when, why, and with what result."""

    id: int
    at: float
    action: str
    actor: str | None
    reason: str
    target: Mapping[str, Any]
    result: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAnswer:
    """What a stored stop changed for one selected run."""

    record: RunRecord
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """What one stop request changed, and the hold it placed."""

    answers: tuple[StopAnswer, ...] = ()
    hold: Hold | None = None
    waits_until: float | None = None
    """If it found no run and waits for one: until when."""


class BulkStop(tuple[Receipt, ...]):  # noqa: SLOT001 - a subclass of tuple cannot have slots
    """The receipts of the matching runs, in a tuple; the runs below one of them are in its receipt."""

    hold: Hold | None
    """The hold that was placed."""
    waits_until: float | None
    """If the key had no live run: the next run of the key that starts before this time is stopped before it begins."""

    def __new__(cls, receipts: Iterable[Receipt], hold: Hold | None, waits_until: float | None = None) -> Self:
        """Create it from receipts, the hold, and the time until which the stop waits."""
        bulk = super().__new__(cls, receipts)
        bulk.hold = hold
        bulk.waits_until = waits_until
        return bulk

    def __getnewargs__(self) -> tuple[tuple[Receipt, ...], Hold | None, float | None]:
        """Support copying and pickling."""
        return tuple(self), self.hold, self.waits_until


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The runs to list."""

    status: frozenset[Status] = frozenset()
    agent: str | None = None
    owner: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    parent_id: str | None = None
    key: str | None = None
    roots: bool = False
    """Only runs that no other run started."""

    def matches(self, record: RunRecord) -> bool:
        """Return whether a run matches."""
        return (
            (not self.status or record.status in self.status)
            and self.owner in {None, record.owner}
            and self.agent in {None, record.name}
            and self.parent_id in {None, record.parent_id}
            and self.key in {None, record.key}
            and not (self.roots and record.parent_id is not None)
            and all(record.labels.get(key) == value for key, value in self.labels.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summaries:
    """A part of a list, newest first, and where the next part begins."""

    runs: tuple[RunSummary, ...] = ()
    cursor: str | None = None


def to_json(value: Any) -> Any:
    """Return the JSON form of anything in this module."""
    return _json.dump(value)


def run_from_json(data: Mapping[str, Any]) -> RunRecord:
    """Return a record from its JSON form; refuses one that a newer stoppable wrote."""
    if data.get("version", VERSION) > VERSION:
        raise InvalidArgument(
            f"the record of run {data.get('id')} has version {data['version']}, this stoppable reads up to {VERSION}: "
            "upgrade stoppable"
        )
    return _json.load(RunRecord, data)
