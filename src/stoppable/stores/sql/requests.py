"""A stop as it was asked for, on its way to the database."""

from __future__ import annotations

from dataclasses import dataclass

from stoppable.records import Selector, StopIntent


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A stop with all that was said about it."""

    target: str | Selector
    intent: StopIntent
    idempotency_key: str | None
    hold: bool
    dry_run: bool
    owner: str | None
    if_unknown_hold: bool
    asked_at: float | None
