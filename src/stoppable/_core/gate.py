"""The gate: what a stop must reach, and whether a run still lets anything in.

Entering takes no lock. Whoever comes publishes itself among the members first and reads ``_closed`` afterwards;
whoever closes sets ``_closed`` first and takes the snapshot afterwards. So either the newcomer sees the flag, or the
snapshot has the newcomer, and nothing slips in unseen (G1). Putting a key into a dict, popping it and copying its keys
are atomic in CPython; popping a member is the claim to it, which exactly one caller gets.

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
# A fork waits for whoever holds it: in the child nobody would ever give it back.
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)


class Role(Enum):
    """What a member is to the run; read in place of ``isinstance`` where a stop looks at every member of a tree."""

    PARTICIPANT = "participant"
    REMOTE = "remote"
    BOUNDARY = "boundary"
    HOOK = "hook"


class Member:
    """Whatever a run has besides its children; compared by identity."""

    __slots__ = ()

    role: ClassVar[Role]


M = TypeVar("M", bound=Member)


class Gate:
    """The members of one run."""

    # What a stop touches in every run of a tree, side by side in memory: that is most of what it costs.
    __slots__ = ("_closed", "_members", "_stop")

    _closed: bool
    _stop: Stop | None  # the first one: it keeps the reason
    _members: dict[Member, bool] | None  # made for the first member: most of a large tree has none

    def _admit(self, member: Member) -> None:
        """Publish a member; the caller reads ``_closed`` next."""
        members = self._members
        if members is None:
            members = self._make_members()
        members[member] = True

    def _make_members(self) -> dict[Member, bool]:
        with lock:
            members = self._members
            if members is None:
                members = self._members = {}
            return members

    def _withdraw(self, member: Member) -> bool:
        """Take a member out; True for the one caller that did."""
        members = self._members
        return members is not None and members.pop(member, False)

    def _list(self, kind: type[M]) -> list[M]:
        """Return the members of one kind that are here now."""
        members = self._members
        return [member for member in list(members) if isinstance(member, kind)] if members else []
