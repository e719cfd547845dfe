"""Stops that arrived before their runs, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from stoppable.records import StopIntent
from stoppable.stores import rules

Address = tuple[str, str]
"""What a stop waits for: a run (``"run"``, its id), or the next one of a conversation (``"key"``, its key)."""

_FEW = 8


class Tombstones:
    """Waiting stops by address and owner, each with the time until when it waits."""

    __slots__ = ("_most", "_waiting")

    def __init__(self) -> None:
        self._most = _FEW  # when there are so many, expired ones are removed
        self._waiting: dict[tuple[Address, str | None], tuple[float, StopIntent]] = {}

    def add(self, address: Address, owner: str | None, intent: StopIntent, now: float, seconds: float) -> float:
        """Let a stop wait, and return until when; it is combined with one that waits already."""
        if len(self._waiting) >= self._most:
            self._waiting = {key: kept for key, kept in self._waiting.items() if kept[0] > now}
            self._most = max(_FEW, 2 * len(self._waiting))
        known, earlier = self._waiting.get((address, owner), (now, None))
        earlier = earlier if known > now else None
        until = max(known, now + seconds)
        self._waiting[address, owner] = (until, rules.raised(earlier, intent))
        return until

    def take(self, addresses: Iterable[Address], owner: str | None, now: float) -> StopIntent | None:
        """Remove the stops that waited for a run with these addresses, and return them combined."""
        first: StopIntent | None = None
        for address in addresses:
            for meant in dict.fromkeys((None, owner)):
                until, stop = self._waiting.pop((address, meant), (now, None))
                if until > now and stop is not None:
                    first = rules.raised(first, stop)
        return first
