"""The gate: orders everything that happens to a run, without a lock.

Two facts of CPython carry it, on every thread and inside a signal handler: appending to a list is atomic, and so is
putting a key into a dict or popping it.

``_members``  What a stop must reach: child runs, participants, open boundaries, hooks. Whoever comes publishes itself
              first and reads ``_closed`` afterwards; whoever closes sets ``_closed`` first and takes the snapshot
              afterwards. So either the newcomer sees the flag or the snapshot has the newcomer, and nothing slips in
              unseen (G1). Popping a member is the claim to it: exactly one caller gets True.
``_log``      What happened, append-only. The order of its entries is the order of events for everybody: the first stop
              is the reason (G3), a delivery counts if it stands before the end (G8), the first outcome is the outcome
              (G2).

A lock would do the same at twice the cost, and would deadlock a signal handler that stops the run it interrupted.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, TypeVar

T = TypeVar("T")


class Role(Enum):
    """What a member is to the run; read in place of ``isinstance``, because a stop looks at every member of a tree."""

    RUN = "run"
    PARTICIPANT = "participant"
    BOUNDARY = "boundary"
    HOOK = "hook"


class Member:
    """Whatever can stand in a gate; compared by identity."""

    __slots__ = ()

    role: ClassVar[Role]


class Gate(Member):
    """The members and the log of one run."""

    __slots__ = ("_closed", "_log", "_members")

    role = Role.RUN

    def __init__(self) -> None:
        self._closed = False
        self._members: dict[Member, bool] = {}
        self._log: list[object] = []

    def _admit(self, member: Member) -> bool:
        """Publish a member, then say whether the gate is still open."""
        self._members[member] = True
        return not self._closed

    def _withdraw(self, member: Member) -> bool:
        """Take a member out; True for the one caller that did."""
        return self._members.pop(member, False)

    def _first(self, kind: type[T]) -> T | None:
        """Return the first entry of a kind in the log."""
        for entry in self._log:
            if isinstance(entry, kind):
                return entry
        return None
