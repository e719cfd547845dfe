"""Records as rows, and back."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stoppable import _json
from stoppable._core.policy import Limits, Policy
from stoppable._core.reason import Reason
from stoppable._core.state import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.errors import InvalidArgument
from stoppable.records import (
    ERROR_LENGTH,
    SETTERS,
    Draft,
    Event,
    EventType,
    Hold,
    OutcomeRecord,
    RunRecord,
    StopIntent,
)
from stoppable.stores import rules

Row = tuple[Any, ...]


def _encoder() -> Callable[[object], str]:
    plain = json.JSONEncoder(separators=(",", ":"), default=_json.shallow)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    # ``encode`` makes one of these for every call, which takes longer than to use it. Without ``markers`` it keeps
    # nothing between calls; a value that contains itself ends in a RecursionError then.
    parts = make(None, plain.default, json.encoder.encode_basestring_ascii, None, ":", ",", *(False, False, True))
    return lambda value: "".join(parts(value, 0))


encode: Callable[[object], str] = _encoder()
"""Return the text of anything in a record."""

decode: Callable[[str | bytes], Any] = json.loads


def array(numbers: Iterable[int]) -> str:
    """Return whole numbers as JSON, at a tenth of what ``encode`` takes."""
    return f"[{','.join(map(str, numbers))}]"


MODES = tuple(Mode)
_STATUSES = {status.value: status for status in Status}
_TYPES = {kind.value: kind for kind in EventType}

_BEGINNING = """id, name, parent_id, root_id, owner, labels, status, worker, epoch, spec, created_at, started_at,
 ended_at, CASE status WHEN 'lost' THEN ended_late END, mode, grace, reason, stop_requested_at, acknowledged,"""

RECORD = f"""{_BEGINNING} coalesce((SELECT outcome FROM outcomes WHERE run = number), outcome), receipt,
 key, coalesce((SELECT input FROM inputs WHERE run = number), input), metadata,
 (SELECT coalesce(max(seq), 0) FROM events WHERE run = number), number"""  # noqa: S608 - our own names
"""What ``record`` wants of a row of runs."""

SUMMARY = f"{_BEGINNING} outcome, json_replace(receipt, '$.nodes', json_array()), key, NULL, NULL, 0, number"
"""The same for a list: nothing that may be large is read. What outcome and receipt have besides may be missing."""

_SHORT = 2048
"""The longest outcome that is kept with its run. SQLite reads a row up to the column that it wants, so a large value in
it would be read for everything that lies behind."""

COLUMNS = (
    "id, request, parent, parent_id, root_id, name, owner, labels, spec, created_at, worker, status, epoch, started_at,"
    " ended_at, mode, grace, reason, stop_requested_at, acknowledged, outcome, receipt, metadata, key, input"
)
INSERT = f"INSERT INTO runs ({COLUMNS}) VALUES ({', '.join('?' * 25)}) RETURNING number"  # noqa: S608 - our own names
"""Takes what ``values`` returns."""

UPDATE = (
    "UPDATE runs SET status = ?, epoch = ?, started_at = ?, ended_at = ?, mode = ?, grace = ?, reason = ?,"
    " stop_requested_at = ?, acknowledged = ?, outcome = ?, receipt = ?, metadata = ? WHERE number = ?"
)
"""Takes what ``changing`` returns, and the number."""


def record(row: Row) -> RunRecord:
    """Return the record of a row with the columns RECORD."""
    (
        id_, name, parent_id, root_id, owner, labels, status, worker, epoch, spec, created_at, started_at, ended_at,
        ended_late, mode, grace, reason, stop_requested_at, acknowledged, outcome, receipt, key, given, facts,
        last_event, _,
    ) = row  # fmt: skip
    isolation, on_disconnect, limits, policy, version = _spec_of(spec)
    given, omitted = (None, {}) if given is None else decode(given)
    made = object.__new__(RunRecord)
    for set_, value in zip(
        SETTERS.values(),
        (
            id_, name, parent_id, root_id, owner, dict(_labels_of(labels)), None if key is None else decode(key),
            _STATUSES[status], worker, epoch, isolation, on_disconnect, limits, policy,
            given, omitted, {} if facts is None else decode(facts), created_at, started_at, ended_at, ended_late,
            None if mode < 0 else stop_of(mode, grace, reason),
            stop_requested_at,
            None if acknowledged < 0 else MODES[acknowledged],
            None if outcome is None else _json.load(OutcomeRecord, decode(outcome)),
            None if receipt is None else _json.load(Receipt, decode(receipt)),
            last_event, version,
        ),
        strict=True,
    ):  # fmt: skip
        set_(made, value)
    return made


# Most runs of a program have the same few of these, and a bulk stop has one for all.


@lru_cache(1024)
def _spec_of(text: str) -> tuple[str, str, Limits | None, Policy, int]:
    isolation, on_disconnect, limits, policy, version = decode(text)
    return isolation, on_disconnect, limits and _json.load(Limits, limits), _json.load(Policy, policy), version


@lru_cache(1024)
def _labels_of(text: str) -> Mapping[str, str]:
    found: Mapping[str, str] = decode(text)
    return found


@lru_cache(1024)
def stop_of(mode: int, grace: float | None, reason: str) -> StopIntent:
    """Return the stop that these columns tell of."""
    return StopIntent(mode=MODES[mode], reason=_json.load(Reason, decode(reason)), grace=grace)


def holds(found: Iterable[Row]) -> list[Hold]:
    """Return the holds of rows that have nothing else."""
    return [_json.load(Hold, decode(text)) for (text,) in found]


def waiting_stop(found: Iterable[Row], now: float) -> StopIntent | None:
    """Return the stop that waited for a run, of rows with the time until when each waits, and the stop."""
    first: StopIntent | None = None
    for expires, text in found:
        if expires > now:
            first = rules.raised(first, _json.load(StopIntent, decode(text)))
    return first


@lru_cache(1024)
def _spec(isolation: str, on_disconnect: str, policy: Policy, version: int) -> str:
    return encode((isolation, on_disconnect, None, policy, version))


def values(record: RunRecord, request: str, parent: int | None, given: str | None) -> Row:
    """Return what INSERT takes; ``given`` is the input."""
    if record.limits is None:
        spec = _spec(record.isolation, record.on_disconnect, record.policy, record.version)
    else:
        spec = encode((record.isolation, record.on_disconnect, record.limits, record.policy, record.version))
    status, epoch, *rest = changing(record)
    return (
        record.id, request, parent, record.parent_id, record.root_id, record.name, record.owner,
        encode(record.labels) if record.labels else "{}",
        spec, record.created_at, record.worker, status, epoch, *rest,
        None if record.key is None else encode(record.key),
        None if long_input(given) else given,
    )  # fmt: skip


def input_of(record: RunRecord) -> str | None:
    """Return what a run was started with, as it is kept."""
    return None if record.input is None and not record.omitted else encode((record.input, record.omitted))


def long_input(given: str | None) -> bool:
    """Return whether an input lies apart from its run."""
    return given is not None and len(given) > _SHORT


def changing(record: RunRecord) -> Row:
    """Return what UPDATE takes, before the number, of a run that is not over."""
    return _changing(record, None)


def _changing(record: RunRecord, outcome: str | None) -> Row:
    stop = record.stop
    return (
        record.status,
        record.epoch,
        record.started_at,
        record.ended_at,
        *((-1, None, None) if stop is None else (stop.mode.rank, stop.grace, encode(stop.reason))),
        record.stop_requested_at,
        -1 if record.acknowledged is None else record.acknowledged.rank,
        outcome,
        None if record.receipt is None else encode(record.receipt),
        encode(record.metadata) if record.metadata else None,
    )


def ending(record: RunRecord, outcome: OutcomeRecord) -> tuple[Row, str | None]:
    """Return what UPDATE takes of a run that is over, and its outcome if that is too long to be kept with it."""
    text = encode(outcome)
    if len(text) <= _SHORT:
        return _changing(record, text), None
    error = outcome.error and replace(outcome.error, message=outcome.error.message[:ERROR_LENGTH], trace="")
    return _changing(record, encode(replace(outcome, result=None, partial=None, error=error))), text


def event(run_id: str, row: Row) -> Event:
    """Return the event of a row with seq, at, type and data."""
    seq, at, kind, data = row
    return Event(run_id=run_id, seq=seq, at=at, type=_TYPES[kind], data=decode(data))


class Lines:
    """Events that are ready to be written; made by the caller, so that one that has no JSON form fails alone."""

    __slots__ = ("moves", "rows")

    def __init__(self, drafts: Sequence[Draft]) -> None:
        self.rows: list[tuple[float | None, EventType, str]] = []
        self.moves: list[Draft] = []
        for draft in drafts:
            kind, data = draft.type, draft.data
            try:
                self.rows.append((draft.at, kind, encode(data) if data else "{}"))
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidArgument(f"the data of a {kind} event has no JSON form: {error}") from error
            if kind in rules.MOVES:
                self.moves.append(draft)

    def then(self, more: Lines) -> Lines:
        """Return these and more."""
        if not self.rows:
            return more
        both = Lines(())
        both.rows = self.rows + more.rows
        return both
