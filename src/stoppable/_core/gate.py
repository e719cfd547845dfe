"""The gate: what a stop must reach, and whether a run still lets anything in.

Entering takes no lock. A new member first publishes itself among the members and then reads ``closed``; closing first
sets ``closed`` and then takes the snapshot. So either the new member sees the flag, or the snapshot contains the
member, and nothing enters unseen (G1). Adding a key to a dict, popping it and copying the keys are atomic in CPython;
popping a member claims it, and exactly one caller succeeds.

Everything rarer (a stop, its delivery, the end of a run) happens under ``lock``: one for the process, held for a few
lines, never while calling out. It is re-entrant because a signal handler may stop a run while it interrupts a thread
that holds it. Python runs signal handlers only at calls and at the top of loops, so a test and the assignment after it
are one step to them.
"""

from __future__ import annotations

import os
import threading
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from stoppable._core.stop import Stop

lock = threading.RLock()
# A fork waits for the lock: in the child, no thread would ever release it.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class Role(Enum):
    """The role of a member; faster than ``isinstance`` when a stop visits every member of a tree."""

    PARTICIPANT = "participant"
    REMOTE = "remote"
    BOUNDARY = "boundary"
    HOOK = "hook"


class Member:
    """Anything that a run has besides its children; compared by identity."""

    __slots__ = ()

    role: ClassVar[Role]

    def body_ended(self) -> None:
        """Close what the code of a stopped run left open; called when that code has ended."""


M = TypeVar("M", bound=Member)


class Gate:
    """The members of one run."""

    # The fields that a stop touches in every run of a tree are adjacent in memory, which is most of its cost.
    __slots__ = ("closed", "first_stop", "members")

    closed: bool
    first_stop: Stop | None  # the first stop, which has the reason
    members: dict[Member, bool] | None  # created for the first member: most runs of a large tree have none

    def admit(self, member: Member) -> None:
        """Publish a member; the caller reads ``closed`` next."""
        members = self.members
        if members is None:
            members = self.make_members()
        members[member] = True

    def make_members(self) -> dict[Member, bool]:
        with lock:
            members = self.members
            if members is None:
                members = self.members = {}
            return members

    def withdraw(self, member: Member) -> bool:
        """Remove a member; returns True to the one caller that removed it."""
        members = self.members
        return members is not None and members.pop(member, False)

    def members_of(self, kind: type[M]) -> list[M]:
        """Return the current members of one kind."""
        members = self.members
        return [member for member in list(members) if isinstance(member, kind)] if members else []
