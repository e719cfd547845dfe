"""The values a run moves through: statuses with their transition table, modes, rungs, fates."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

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

    @property
    def terminal(self) -> bool:
        """Whether the run has ended for good (G2)."""
        return not self.followers


_END = (Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST)

for _status, _followers in (
    (Status.PENDING, (Status.RUNNING, Status.STOPPED, Status.LOST)),
    (Status.RUNNING, (Status.COMPLETED, Status.FAILED, Status.STOPPING, Status.LOST)),
    (Status.STOPPING, _END),  # completed and failed only if the stop was never delivered: see RunNode.end
    *((_terminal, ()) for _terminal in _END),
):
    _status.followers = _followers


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
    ABANDONED = "abandoned"
    UNREACHABLE = "unreachable"
