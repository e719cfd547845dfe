"""The decisions that every store makes alike: how stops combine, and how runs begin, change and end."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stoppable import _json
from stoppable._core.run import Partial
from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Reason, ReasonKind, Rung, Status
from stoppable.errors import InvalidArgument, RunHeld
from stoppable.records import (
    AuditEntry,
    Draft,
    ErrorRecord,
    Event,
    EventType,
    Hold,
    IfUnknown,
    OutcomeRecord,
    RunRecord,
    Selector,
    StopIntent,
    StopRequest,
    replace_fields,
    to_json,
)
from stoppable.stores.base import NEXT_TURN_SECONDS, TOMBSTONE_SECONDS

ALWAYS_KEPT = frozenset({EventType.STATUS, EventType.DONE, EventType.LATE, EventType.TRUNCATED})
"""The types of events that are stored even if the log is full; a run has few of them."""

MOVES = frozenset({EventType.STATUS, EventType.ANNOTATED})
"""The types of events that change a record."""

FACTS_KEPT = 64
"""The largest number of names in the metadata of a run."""

PARTIAL_BYTES = 1_000_000
"""The largest partial that is put together from a log."""

_CURSOR_DIGITS = 18  # such a number fits into 64 bits


def answer_of(record: RunRecord, intent: StopIntent) -> Answer:
    """Return what a stop changes for a run."""
    if record.over:
        return Answer.ALREADY_FINISHED
    if record.stop is None:
        return Answer.ACCEPTED
    return Answer.ESCALATED if intent.mode > record.stop.mode else Answer.ALREADY_STOPPING


def escalate(earlier: StopIntent | None, intent: StopIntent) -> StopIntent:
    """Return the stop of a run after one more: the mode only rises, the first reason stays (G3, G6)."""
    if earlier is None:
        return intent
    if intent.mode <= earlier.mode:
        return earlier
    return replace(earlier, mode=intent.mode, grace=intent.grace)


def request_time(at: float | None, now: float) -> float:
    """Return when a stop was requested, which is earlier than now if its runs were stopped before it was stored."""
    return now if at is None else min(at, now)


def never_started_record(record: RunRecord, stop: StopIntent, now: float) -> RunRecord:
    """Return the record of a run whose body never runs, because its stop came first."""
    outcome = OutcomeRecord(status=Status.STOPPED, reason=stop.reason, rung=Rung.SIGNAL)
    ended = replace_fields(record, stop=stop, stop_requested_at=now, acknowledged=stop.mode)
    return finish_record(ended, outcome, None, now)


def start_child_record(record: RunRecord, parent: RunRecord | None, now: float) -> RunRecord:
    """Return the record of a child that its worker has already begun, with the stop of its parent.

    On the parent's worker that stop closes the gates of both, so it is not sent again.
    """
    if parent is None or parent.stop is None:
        return replace_fields(record, started_at=now)
    acknowledged = parent.acknowledged if parent.worker == record.worker else None
    return replace_fields(
        record,
        status=Status.STOPPING,
        started_at=now,
        stop=parent.stop,
        stop_requested_at=now,
        acknowledged=acknowledged,
    )


def is_answered(record: RunRecord) -> bool:
    """Return whether the worker has acknowledged every stop of a run."""
    if record.stop is None:
        return True
    return record.acknowledged is not None and record.acknowledged >= record.stop.mode


def is_closed_with(record: RunRecord, above: RunRecord) -> bool:
    """Return whether the acknowledgement of an ancestor's stop counts for this run too."""
    return record.worker == above.worker and record.stop is not None and not record.over


def finish_record(record: RunRecord, outcome: OutcomeRecord, receipt: Receipt | None, now: float) -> RunRecord:
    """Return a record with its terminal status and a new epoch, which fences later writers (G15).

    If the worker sent no receipt for a stop, the record gets one from the store.
    """
    if receipt is None and record.stop is not None:
        receipt = receipt_of(record, Answer.ACCEPTED, outcome.status, now)
    elif receipt is not None:
        receipt = replace(with_request_time(receipt, record.stop_requested_at), ended_at=now)
    return replace_fields(
        record,
        status=outcome.status,
        outcome=outcome,
        receipt=receipt,
        ended_at=now,
        epoch=record.epoch + 1,
    )


def with_request_time(receipt: Receipt, requested_at: float | None) -> Receipt:
    """Return a receipt with the time of the request: a worker only knows when the stop reached it."""
    return receipt if requested_at is None else replace(receipt, requested_at=requested_at)


def note_late_end(record: RunRecord, outcome: OutcomeRecord, now: float) -> RunRecord:
    """Return a record after a report that came too late; it says only when a lost run has ended after all."""
    if record.status is not Status.LOST or outcome.status is Status.LOST or record.ended_late is not None:
        return record
    return replace_fields(record, ended_late=now)


def partial_of(log: Iterable[Mapping[str, Any]]) -> tuple[Any, str | None]:
    """Return the partial according to the ``partial`` events of a log, and why it is incomplete, or None."""
    partial, missing = Partial(), None
    for data in log:
        if "delta" not in data:
            partial, missing = Partial(data.get("value")), None
        if "omitted" in data:
            missing = f"a part of it is not in the log: {data['omitted']}"
        elif "delta" in data:
            try:
                partial.append(data["delta"])
            except InvalidArgument:  # what it is appended to is missing
                missing = "a part of it is not in the log"
    value, too_large = _json.plain(partial.value(), PARTIAL_BYTES)
    return value, too_large or missing


def reap_record(
    record: RunRecord, now: float, *, proven_dead: bool, partials: Iterable[Mapping[str, Any]] = ()
) -> RunRecord:
    """Return the record of a run whose worker is gone (see Store.reap); ``partials`` are the data of partial events."""
    partial, missing = partial_of(partials)
    message = f"its worker {record.worker} " + ("died" if proven_dead else "no longer answers")
    status = Status.STOPPED if record.stop is not None else Status.FAILED
    if not proven_dead:
        status = Status.LOST
    reason = record.stop.reason if record.stop else Reason(kind=ReasonKind.EXTERNAL, message=message, at=now)
    outcome = OutcomeRecord(
        status=status,
        reason=None if status is Status.FAILED else reason,
        rung=None if status is Status.FAILED else Rung.LOST if status is Status.LOST else Rung.KILL,
        clean=None,  # it may have come to its end before its worker did
        partial=partial,
        omitted={} if missing is None else {"partial": missing},
        error=ErrorRecord(type="WorkerLost", message=message) if status is Status.FAILED else None,
    )
    return finish_record(record, outcome, None, now)


def receipt_of(record: RunRecord, answer: Answer, status: Status, now: float | None) -> Receipt:
    """Return the receipt that a store makes by itself; a live worker knows more."""
    stop = record.stop
    receipt = record.receipt or Receipt(run_id=record.id, answer=answer, status=status)
    return replace(
        receipt,
        answer=answer,
        status=status,
        mode=None if stop is None else stop.mode,
        reason=None if stop is None else stop.reason,
        too_late=status in {Status.COMPLETED, Status.FAILED} and stop is not None,
        requested_at=record.stop_requested_at,
        ended_at=now if status.terminal else None,
        ended_late=record.ended_late,
    )


def stop_of_parent(parent: RunRecord | None, now: float) -> StopIntent | None:
    """Return the stop that a child begins with: that of its parent, or a new one if its parent has ended."""
    if parent is None:
        return None
    if parent.stop is not None or not parent.over:
        return parent.stop
    reason = Reason(kind=ReasonKind.PARENT, message=f"its parent {parent.id} is {parent.status}", at=now)
    return StopIntent(reason=reason)


def refuse_held(record: RunRecord, holds: Iterable[Hold]) -> None:
    """Raise RunHeld if a hold matches a start."""
    for hold in holds:
        if hold.selector.matches(owner=record.owner, labels=record.labels, agent=record.name, key=record.key):
            raise RunHeld(hold.id, hold.reason.message, hold.selector.owner)


def apply_event(record: RunRecord, draft: Draft, now: float) -> RunRecord:
    """Return a record after an event that changes it.

    A status moves it along the transition table, but never to a terminal status, which has its own call. Metadata is
    merged; of more than FACTS_KEPT names the first ones stay.
    """
    if draft.type is EventType.ANNOTATED:
        facts = draft.data.get("metadata")
        if not isinstance(facts, Mapping):
            return record
        metadata = {**record.metadata, **facts}
        return replace_fields(record, metadata=dict(itertools.islice(metadata.items(), FACTS_KEPT)))
    status = _status_of(draft)
    if status.terminal or (status is not record.status and status not in record.status.followers):
        return record
    return replace_fields(record, status=status, started_at=now if record.started_at is None else record.started_at)


def apply_events(record: RunRecord, drafts: Iterable[Draft], now: float) -> RunRecord:
    """Return a record after events that change it."""
    for draft in drafts:
        record = apply_event(record, draft, now)
    return record


def open_boundaries(log: Iterable[Event]) -> tuple[str, ...] | None:
    """Return the open boundaries of a log, in the order of their entry."""
    count: Counter[str] = Counter()
    for event in log:
        if event.type is EventType.ENTERED:
            count[boundary_label(event.data.get("kind"), event.data.get("name"))] += 1
        elif event.type is EventType.LEFT:
            count[boundary_label(event.data.get("kind"), event.data.get("name"))] -= 1
        elif event.type is EventType.TRUNCATED:
            return None
    return tuple(count.elements())


def boundary_label(kind: object, name: object) -> str:
    """Return the label of a boundary, as ``Boundary.label`` does."""
    return f"{kind}:{name}" if name else str(kind)


def check_statuses(drafts: Sequence[Draft]) -> None:
    """Raise InvalidArgument for an invalid status, before any event is stored."""
    for draft in drafts:
        if draft.type is EventType.STATUS:
            _status_of(draft)


def _status_of(draft: Draft) -> Status:
    try:
        return Status(draft.data["status"])
    except (KeyError, ValueError):
        raise InvalidArgument(
            f"invalid status event {draft.data!r:.200}: its status must be one of {', '.join(Status)}"
        ) from None


def check_end(outcome: OutcomeRecord, events: Sequence[Draft]) -> None:
    """Raise InvalidArgument for an outcome that is not terminal, or an invalid status event."""
    if not outcome.status.terminal:
        raise InvalidArgument(f"a run ends completed, failed, stopped or lost, not {outcome.status}")
    check_statuses(events)


def check_waiting(request: StopRequest) -> None:
    """Raise InvalidArgument for a stop that could wait for any run."""
    target = request.target
    if request.if_unknown == "wait" and isinstance(target, Selector) and not target.is_conversation:
        raise InvalidArgument("only a stop by run id or key can wait for a run: leave out labels and agent")


def waits_for_key(selector: Selector, owner: str | None) -> bool:
    """Return whether a stop can wait for a run of a key: not if its selector has more, or names another owner."""
    return selector.is_conversation and (owner is None or selector.owner in {None, owner})


def waiting_seconds(*, has_run: bool, if_unknown: IfUnknown) -> float | None:
    """Return how long a stop by key waits for the next run of that key; None if it does not."""
    if if_unknown is None and has_run:
        return None  # it came too late for the last run, and was not meant for the next
    return NEXT_TURN_SECONDS if has_run else TOMBSTONE_SECONDS


def hold_selector(target: str | Selector, owner: str | None) -> Selector | None:
    """Return the selector of the hold that a stop places, limited to an owner; None if it names another owner."""
    if isinstance(target, str):
        raise InvalidArgument(f"a hold needs a selector: run {target!r} has already started")
    if owner is None:
        return target
    return replace(target, owner=owner) if target.owner in {None, owner} else None


def cursor_number(cursor: str | None) -> float:
    """Return the number below which a page begins."""
    if cursor is None:
        return math.inf
    if not cursor.isdecimal() or len(cursor) > _CURSOR_DIGITS:
        raise InvalidArgument(f"invalid cursor {cursor[:40]!r}: use the cursor of the previous page")
    return int(cursor)


def page_size(limit: int) -> int:
    """Return the size of a page, or raise InvalidArgument: an empty page would have no cursor."""
    if limit < 1:
        raise InvalidArgument(f"invalid limit {limit}: use a whole number from 1 up")
    return limit


def audit_entry(
    number: int, now: float, action: str, intent: StopIntent, target: str | Selector, result: Mapping[str, Any]
) -> AuditEntry:
    """Return an entry of the audit."""
    target_json = {"run": target} if isinstance(target, str) else {"selector": to_json(target)}
    return AuditEntry(
        id=number,
        at=now,
        action=action,
        actor=intent.reason.actor,
        reason=intent.reason.message,
        target={**target_json, "mode": intent.mode.value},
        result=result,
    )


def status_event(status: Status, record: RunRecord | None = None) -> Draft:
    """Return the event of a new status, with the reason if the run was stopped."""
    return status_of_stop(status, None if record is None else record.stop)


def status_of_stop(status: Status, stop: StopIntent | None) -> Draft:
    """Return the event of a new status that a stop led to."""
    data: dict[str, object] = {"status": status.value}
    if stop is not None:
        data |= {"mode": stop.mode.value, "reason": stop.reason.message, "actor": stop.reason.actor}
    return Draft(type=EventType.STATUS, data=data)


def done_event(outcome: OutcomeRecord) -> Draft:
    """Return the event of the end of a run."""
    return Draft(type=EventType.DONE, data={"status": outcome.status.value, "clean": outcome.clean})


def late_event(outcome: OutcomeRecord) -> Draft:
    """Return the event of a report that came after the end (G2)."""
    return Draft(type=EventType.LATE, data={"status": outcome.status.value})
