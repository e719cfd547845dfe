"""A stop as it was requested, and the answers that are kept under its idempotency key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stoppable import _json
from stoppable._core.ids import new_id
from stoppable._core.stop import Answer
from stoppable.errors import RunNotFound
from stoppable.records import Hold, Selector, StopAnswer, StopIntent, StopResult
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.session import SqlTransaction

_ANSWERED = "SELECT answers, hold, waits_until FROM answered WHERE key = ? AND owner IS NOT DISTINCT FROM ?"


@dataclass(slots=True)
class Progress:
    """What is kept of a stop that takes several transactions: when one of them fails, it goes on from there."""

    numbers: Sequence[int] | None = None
    """The runs that it stops; None before they are known."""
    done: int = 0
    """How many of them are stopped."""
    hold: Hold | None = None
    answers: Sequence[StopAnswer] = ()

    def keep(self, numbers: Sequence[int], done: int, hold: Hold | None, answers: Sequence[StopAnswer]) -> None:
        """Note what a transaction has kept."""
        self.numbers, self.done, self.hold, self.answers = numbers, done, hold, answers


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """The arguments of ``Store.request_stop``."""

    target: str | Selector
    intent: StopIntent
    idempotency_key: str | None
    hold: bool
    dry_run: bool
    owner: str | None
    if_unknown_hold: bool | None
    asked_at: float | None
    id: str = field(default_factory=new_id)
    """Its own, by which it is known again if the answer was lost."""
    progress: Progress = field(default_factory=Progress)


def earlier_result(tx: SqlTransaction, request: StopRequest, own: str | None = None) -> StopResult | None:
    """Return the result of an earlier request with the same idempotency key, or ``own``; purged runs are left out."""
    key = request.idempotency_key or own
    if key is None:
        return None
    tx.lock("answer", key)
    row = tx.one(_ANSWERED, (key, request.owner))
    if row is None:
        return None
    answers, hold, until = row
    by_id = rows.decode(answers)
    found = tx.records(list(by_id))
    if isinstance(request.target, str) and not found:
        raise RunNotFound(request.target)
    return StopResult(
        answers=tuple(StopAnswer(record=rows.record(row), answer=Answer(by_id[row[0]])) for row in found),
        hold=None if hold is None else _json.load(Hold, rows.decode(hold)),
        waits_until=until,
    )


def remember(tx: SqlTransaction, request: StopRequest, result: StopResult) -> None:
    """Store the result under the idempotency key, and add the stop to the audit."""
    answers = {item.record.id: item.answer for item in result.answers}
    hold, key = result.hold, request.idempotency_key
    if key is not None:
        tx.run(
            "INSERT INTO answered (key, owner, at, answers, hold, waits_until) VALUES (?, ?, ?, ?, ?, ?)",
            (key, request.owner, tx.now(), rows.encode(answers), hold and rows.encode(hold), result.waits_until),
        )
    told: dict[str, object] = {"runs": answers, "hold": hold and hold.id}
    if isinstance(request.target, str) and result.answers:
        told["owner"] = result.answers[0].record.owner
    holds.note(tx, "stop", request.intent, request.target, told)
