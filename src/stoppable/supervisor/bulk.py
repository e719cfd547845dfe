"""What a bulk stop answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from stoppable._core.stop import Receipt
from stoppable.records import Hold


class BulkStop(tuple[Receipt, ...]):  # noqa: SLOT001 - a tuple cannot have slots of its own
    """The receipts of every run that was named, and the hold that was placed."""

    hold: Hold | None

    def __new__(cls, receipts: Iterable[Receipt], hold: Hold | None) -> Self:
        """Put them together."""
        made = super().__new__(cls, receipts)
        made.hold = hold
        return made

    def __getnewargs__(self) -> tuple[tuple[Receipt, ...], Hold | None]:
        """Say what a copy is made of."""
        return tuple(self), self.hold
