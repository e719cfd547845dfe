"""Converts records to rows, and back."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from stoppable import _json
from stoppable._core.stop import Receipt
from stoppable._core.values import Limits, Mode, Policy, Reason, Status
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
from stoppable.stores.base import Intent

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
"""Return the JSON of anything in a record."""

decode: Callable[[str | bytes], Any] = json.loads


def array(numbers: Iterable[int]) -> str:
    """Return integers as JSON, in a tenth of the time of ``encode``."""
    return f"[{','.join(map(str, numbers))}]"


MODES = tuple(Mode)
_STATUSES = {status.value: status for status in Status}
_TYPES = {kind.value: kind for kind in EventType}

_BEGINNING = """id, name, parent_id, root_id, owner, CAST(labels AS TEXT), status, worker, epoch, spec, created_at,
 started_at, ended_at, CASE status WHEN 'lost' THEN ended_late END, mode, grace, reason, stop_requested_at,
 acknowledged,"""


def record_columns(last_event: str) -> str:
    """Return what ``record`` needs of a row of runs; ``last_event`` is how a database finds the end of the log."""
    return f"""{_BEGINNING} coalesce((SELECT outcome FROM outcomes WHERE run = number), outcome), receipt,
 key, coalesce((SELECT input FROM inputs WHERE run = number), input), metadata, {last_event}, number"""  # noqa: S608 - our own names


def summary_columns(receipt: str) -> str:
    """Return the same for a list, without anything that may be large; ``receipt`` is the one without entries."""
    return f"{_BEGINNING} outcome, {receipt}, key, NULL, NULL, 0, number"


_SHORT = 2048
"""The longest outcome or input that is stored in the row of its run. SQLite reads a row up to the wanted column, so it
would read a large value for every column after it."""

COLUMNS = (
    "id, request, parent, parent_id, root_id, name, owner, labels, spec, created_at, worker, status, epoch, started_at,"
    " ended_at, mode, grace, reason, stop_requested_at, acknowledged, outcome, receipt, metadata, key, input"
)
"""The columns of ``values``."""


def record(row: Row) -> RunRecord:
    """Return the record of a row with the ``record_columns``."""
    (
        id_, name, parent_id, root_id, owner, labels, status, worker, epoch, spec, created_at, started_at, ended_at,
        ended_late, mode, grace, reason, stop_requested_at, acknowledged, outcome, receipt, key, input_, facts,
        last_event, _,
    ) = row  # fmt: skip
    isolation, on_disconnect, limits, policy, version = _spec_of(spec)
    input_, omitted = (None, {}) if input_ is None else decode(input_)
    run_record = object.__new__(RunRecord)
    for set_, value in zip(
        SETTERS.values(),
        (
            id_, name, parent_id, root_id, owner, dict(_labels_of(labels)), None if key is None else decode(key),
            _STATUSES[status], worker, epoch, isolation, on_disconnect, limits, policy,
            input_, omitted, {} if facts is None else decode(facts), created_at, started_at, ended_at, ended_late,
            None if mode < 0 else stop_of(mode, grace, reason),
            stop_requested_at,
            None if acknowledged < 0 else MODES[acknowledged],
            None if outcome is None else _json.load(OutcomeRecord, decode(outcome)),
            None if receipt is None else _json.load(Receipt, decode(receipt)),
            last_event, version,
        ),
        strict=True,
    ):  # fmt: skip
        set_(run_record, value)
    return run_record


# Most runs of a program share a few values of these, and a bulk stop has one for all its runs.


@lru_cache(1024)
def _spec_of(text: str) -> tuple[str, str, Limits | None, Policy, int]:
    isolation, on_disconnect, limits, policy, version = decode(text)
    return isolation, on_disconnect, limits and _json.load(Limits, limits), _json.load(Policy, policy), version


@lru_cache(1024)
def _labels_of(text: str) -> Mapping[str, str]:
    labels: Mapping[str, str] = decode(text)
    return labels


@lru_cache(1024)
def stop_of(mode: int, grace: float | None, reason: str) -> StopIntent:
    """Return the stop in these columns."""
    return StopIntent(mode=MODES[mode], reason=_json.load(Reason, decode(reason)), grace=grace)


def intent_row(run_id: str, stop: StopIntent) -> Row:
    """Return a pending stop as it is sent to its worker."""
    return run_id, stop.mode.rank, stop.grace, encode(stop.reason)


def intents(stops: Iterable[Row]) -> list[Intent]:
    """Return the pending stops of rows with the id of a run and the columns of its stop."""
    return [Intent(run_id=run_id, stop=stop_of(*stop)) for run_id, *stop in stops]


def holds(texts: Iterable[Row]) -> list[Hold]:
    """Return the holds of rows with that one column."""
    return [_json.load(Hold, decode(text)) for (text,) in texts]


def waiting_stop(stops: Iterable[Row], now: float) -> StopIntent | None:
    """Combine the stops that waited for a run, from rows with the time until when each waits, and the stop."""
    first: StopIntent | None = None
    for expires, text in stops:
        if expires > now:
            first = rules.escalate(first, _json.load(StopIntent, decode(text)))
    return first


@lru_cache(1024)
def _spec(isolation: str, on_disconnect: str, policy: Policy, version: int) -> str:
    return encode((isolation, on_disconnect, None, policy, version))


def values(record: RunRecord, request: str, parent: int | None, input_: str | None) -> Row:
    """Return the values of COLUMNS; ``input_`` is the input as JSON."""
    if record.limits is None:
        spec = _spec(record.isolation, record.on_disconnect, record.policy, record.version)
    else:
        spec = encode((record.isolation, record.on_disconnect, record.limits, record.policy, record.version))
    status, epoch, *rest = changing_values(record)
    return (
        record.id, request, parent, record.parent_id, record.root_id, record.name, record.owner,
        encode(record.labels) if record.labels else "{}",
        spec, record.created_at, record.worker, status, epoch, *rest,
        None if record.key is None else encode(record.key),
        None if long_input(input_) else input_,
    )  # fmt: skip


def input_of(record: RunRecord) -> str | None:
    """Return the input of a run as JSON."""
    return None if record.input is None and not record.omitted else encode((record.input, record.omitted))


def long_input(input_: str | None) -> bool:
    """Return whether an input is too long for the row of its run."""
    return input_ is not None and len(input_) > _SHORT


def changing_values(record: RunRecord) -> Row:
    """Return the values of the columns that change, for a run that has not ended."""
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


def ending_values(record: RunRecord, outcome: OutcomeRecord) -> tuple[Row, str | None]:
    """Return the same for a run that has ended, and its outcome if that is too long for the row."""
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
    """Events that are ready to be written. The caller makes them, so that one without a JSON form fails alone."""

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
        """Return these lines, followed by more."""
        if not self.rows:
            return more
        both = Lines(())
        both.rows = self.rows + more.rows
        return both


Append = tuple[str, int, Lines]
"""The arguments of an append."""
