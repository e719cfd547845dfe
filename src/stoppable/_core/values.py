"""The values of a run and of a stop: states, reasons, policies, outcomes, ids and labels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, NamedTuple, Self, TypeVar

from stoppable._core import clock
from stoppable.errors import InvalidArgument


class Status(StrEnum):
    """The status of a run."""

    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"

    followers: tuple[Status, ...]
    """The statuses that may follow."""
    terminal: bool
    """Whether the run has ended for good (G2)."""


_END = (Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST)

for _status, _followers in (
    (Status.PENDING, (Status.RUNNING, Status.STOPPED, Status.LOST)),
    (Status.RUNNING, (Status.COMPLETED, Status.FAILED, Status.STOPPING, Status.LOST)),
    (Status.STOPPING, _END),  # completed and failed only if the stop was never delivered: see RunNode.end
    *((_terminal, ()) for _terminal in _END),
):
    _status.followers, _status.terminal = _followers, not _followers


class _Ranked(StrEnum):
    """A StrEnum whose members are ordered by definition, not alphabetically."""

    rank: int

    def __new__(cls, value: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.rank = len(cls.__members__)
        return member

    def __lt__(self, other: str) -> bool:
        return self.rank < type(self)(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= type(self)(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > type(self)(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= type(self)(other).rank


class Mode(_Ranked):
    """How hard a stop is; a later stop can only raise it (G6)."""

    COOPERATIVE = "cooperative"
    GRACEFUL = "graceful"
    IMMEDIATE = "immediate"
    KILL = "kill"

    @classmethod
    def of(cls, value: str) -> Mode:
        """Return the mode of that name, or raise an error that lists the modes."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidArgument(f"unknown mode {value!r}: use {', '.join(cls)}") from None


PRESSES = (Mode.GRACEFUL, Mode.IMMEDIATE, Mode.KILL)
"""The modes of the first, second and third Ctrl-C, signal or press of a Stop button."""


class Rung(_Ranked):
    """The steps of the ladder, which is climbed while a part of a stopped run is alive."""

    SIGNAL = "signal"
    INTERRUPT = "interrupt"
    CANCEL = "cancel"
    KILL = "kill"
    LOST = "lost"


class Fate(StrEnum):
    """What happened to an effect that was in flight when the run was stopped (docs/semantics.md, Fates)."""

    FINISHED = "finished"
    CLOSED = "closed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    KILLED = "killed"
    TOLD = "told"
    ABANDONED = "abandoned"
    UNREACHABLE = "unreachable"


class ReasonKind(StrEnum):
    """What kind of event stopped a run."""

    USER = "user"
    LIMIT = "limit"
    PARENT = "parent"
    SHUTDOWN = "shutdown"
    DISCONNECT = "disconnect"
    POLICY = "policy"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a run was stopped, by whom and when; the first reason stays (G3)."""

    kind: ReasonKind = ReasonKind.USER
    message: str = ""
    actor: str | None = None
    at: float = 0.0
    cause: str | None = None
    source: str | None = None
    """The protocol by which it came, such as ``openai``; None for the library's own functions and routes."""

    def __str__(self) -> str:
        text = self.message or f"stopped by {self.kind}"
        return f"{text} ({self.actor})" if self.actor else text

    @classmethod
    def of(
        cls,
        value: Reason | str | None,
        *,
        kind: ReasonKind = ReasonKind.USER,
        actor: str | None = None,
        source: str | None = None,
    ) -> Reason:
        """Return a reason from a text, a ``Reason`` or None; ``actor`` is used if the reason has none."""
        if value is not None and not isinstance(value, (str, Reason)):
            raise InvalidArgument(f"reason is {value!r}: use a string")
        if actor is not None and not isinstance(actor, str):
            raise InvalidArgument(f"actor is {actor!r}: use a string")
        if isinstance(value, Reason):
            return replace(value, actor=actor) if actor and not value.actor else value
        return cls(kind=kind, message=value or "", actor=actor, at=clock.now(), source=source)


T_co = TypeVar("T_co", covariant=True)


class Outcome(NamedTuple, Generic[T_co]):
    """The terminal record of a run; written once and never changed (G2).

    ``reason`` is why it was stopped, even if the stop came too late. ``rung`` is the highest rung that was climbed.
    ``clean`` is True if every ``finally`` is known to have run to its end, False if one is known not to have, and None
    if that is unknown (G7). ``error`` is the error that the body raised, including one that it raised while stopping
    (G8).
    """

    # A named tuple, because every run creates one, and a frozen dataclass of eight fields is five times slower.
    status: Status
    reason: Reason | None = None
    rung: Rung | None = None
    clean: bool | None = True
    result: T_co | None = None
    partial: object = None
    error: BaseException | None = None
    at: float = 0.0


_MOST = 31_536_000  # seconds, a year: every wait can take that long, and every store can keep it


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How many seconds each rung of the ladder lasts.

    A graceful stop waits ``grace`` after SIGNAL, ``interrupt`` after INTERRUPT, ``cancel`` after CANCEL and ``kill``
    after KILL. Harder modes skip the first waits; a cooperative stop never climbs. A run that has never reached a
    boundary or check cannot notice the stop: it is cancelled after ``blind_grace``, unless the stop itself has a
    ``grace``.
    """

    grace: float = 10.0
    interrupt: float = 1.0
    cancel: float = 5.0
    kill: float = 2.0
    blind_grace: float = 2.0

    def __post_init__(self) -> None:
        for name in ("grace", "interrupt", "cancel", "kill", "blind_grace"):
            seconds(getattr(self, name), name)

    def schedule(
        self, mode: Mode, grace: float | None = None, blind_after: float | None = None
    ) -> Iterator[tuple[Rung, float]]:
        """Yield the rungs above SIGNAL, each with the seconds after the request at which it begins.

        A blind run, which has nothing to interrupt, is cancelled ``blind_after`` seconds after the request.
        """
        if mode is Mode.COOPERATIVE:
            return
        gentle = mode is Mode.GRACEFUL
        is_blind = gentle and grace is None and blind_after is not None
        at = next(wait for wait in (grace, blind_after, self.grace) if wait is not None) if gentle else 0.0
        yield Rung.INTERRUPT, at
        at += self.interrupt if gentle and not is_blind else 0.0
        yield Rung.CANCEL, at
        at += 0.0 if mode is Mode.KILL else self.cancel
        yield Rung.KILL, at
        yield Rung.LOST, at + self.kill

    @property
    def blind_wait(self) -> float:
        """How many seconds a graceful stop waits for a blind run."""
        return min(self.blind_grace, self.grace + self.interrupt)

    def total(self, mode: Mode, grace: float | None = None) -> float:
        """Return the seconds after which a stop in this mode has a terminal status (G6)."""
        return max((at for _, at in self.schedule(mode, grace)), default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a run and its subtree may use; exceeding a limit stops the run, with a reason of kind ``limit``."""

    seconds: float | None = None
    boundaries: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.seconds is not None:
            seconds(self.seconds, "seconds")
        if not isinstance(self.boundaries, Mapping):
            raise InvalidArgument(f"boundaries is {self.boundaries!r:.40}: use a dict of kinds and whole numbers")
        for kind, count in self.boundaries.items():
            if not isinstance(count, int) or count < 0:
                raise InvalidArgument(f"the limit of {kind!r} boundaries is {count!r}: use a whole number from 0 up")


def check_given(limits: object, policy: object) -> None:
    """Raise an error if limits or a policy have the wrong type."""
    for name, value, kind in (("limits", limits, Limits), ("policy", policy, Policy)):
        if value is not None and not isinstance(value, kind):
            raise InvalidArgument(f"{name} is {value!r}: use stoppable.{kind.__name__}(…)")


def seconds(value: float, name: str, unit: str = "seconds") -> float:
    """Return a duration, or raise an error that says which values are valid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise InvalidArgument(f"{name} is {value!r:.40}: use a number of {unit} from 0 up to {_MOST:,}")
    return value


RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}"
"""The ids that a caller may give its runs, as a regular expression."""

_BATCH = 256
_fresh: list[str] = []


def new_id() -> str:
    """Return a new id; reads random bytes from the system for many ids at once."""
    try:
        return _fresh.pop()
    except IndexError:
        digits = os.urandom(16 * _BATCH).hex()
        _fresh.extend(digits[at : at + 32] for at in range(0, len(digits), 32))
        return _fresh.pop()


os.register_at_fork(after_in_child=_fresh.clear)  # a forked child must not hand out its parent's ids again


LABEL_LENGTH = 256
"""The maximum length of a label's name, of its value, and of an owner."""

_LABELS = 32


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise an error if labels are invalid."""
    if not isinstance(labels, Mapping) or len(labels) > _LABELS:
        raise InvalidArgument(f"too many labels, or not a mapping: use up to {_LABELS} pairs of strings")
    for text in (*labels.keys(), *labels.values()):
        if not isinstance(text, str) or len(text) > LABEL_LENGTH:
            raise InvalidArgument(f"invalid label {str(text)[:40]!r}: use a string of up to {LABEL_LENGTH} characters")
