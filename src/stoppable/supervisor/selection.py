"""Which runs a stop selects, and the answer of a bulk stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from stoppable._core.state import Status
from stoppable._core.stop import Receipt
from stoppable.records import Filter, Hold, Selector, check_key


@dataclass(frozen=True, slots=True)
class StopRequest:
    """A stop request to the store; see Store.request_stop."""

    target: str | Selector
    owner: str | None = None
    hold: bool = False
    dry_run: bool = False
    if_unknown_hold: bool | None = False
    idempotency_key: str | None = None


def live_of(key: str, owner: str | None) -> Filter:
    """Return a filter for the live runs of a conversation."""
    check_key(key)
    live = frozenset(status for status in Status if not status.terminal)
    return Filter(key=key, owner=owner, status=live)


class BulkStop(tuple[Receipt, ...]):  # noqa: SLOT001 - a subclass of tuple cannot have slots
    """The receipts of the matching runs, in a tuple; the runs below one of them are in its receipt."""

    hold: Hold | None
    """The hold that was placed."""
    waits_until: float | None
    """If the key had no live run: the next run of the key that starts before this time is stopped before it begins."""

    def __new__(cls, receipts: Iterable[Receipt], hold: Hold | None, waits_until: float | None = None) -> Self:
        """Create it from receipts, the hold, and the time until which the stop waits."""
        made = super().__new__(cls, receipts)
        made.hold = hold
        made.waits_until = waits_until
        return made

    def __getnewargs__(self) -> tuple[tuple[Receipt, ...], Hold | None, float | None]:
        """Support copying and pickling."""
        return tuple(self), self.hold, self.waits_until
