"""Converts the times, outcomes and errors of live runs to what the store keeps, and back."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from stoppable import _json
from stoppable._core import clock
from stoppable._core.ids import new_id
from stoppable._core.node import RunNode
from stoppable._core.outcome import Outcome
from stoppable._core.reason import Reason
from stoppable._core.state import Status
from stoppable._core.stop import Receipt
from stoppable._engine import control
from stoppable._engine.source_lines import trace_of
from stoppable._engine.threads import pool
from stoppable.errors import StoppableError
from stoppable.records import ErrorRecord, OutcomeRecord, RunRecord

VALUE_BYTES = 1_000_000
"""The largest result, partial or event that is stored."""

METADATA_BYTES = 16_384
"""The largest set of facts that one call of ``Run.annotate`` may store."""

INPUT_BYTES = 100_000
"""The largest input of a run that is stored, as JSON."""

VALUE_SECONDS = 3.0
"""How long the end of a run waits for the JSON of its result; shorter than a shutdown waits for the ends."""

_TEXT = 10_000


class AgentError(StoppableError):
    """The error of a run that another process executed; its type and traceback are in the message."""


def shifted(receipt: Receipt, seconds: float) -> Receipt:
    """Return a receipt with its times on another clock."""

    def moved(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return replace(
        receipt,
        reason=None if receipt.reason is None else shifted_reason(receipt.reason, seconds),
        requested_at=moved(receipt.requested_at),
        acknowledged_at=moved(receipt.acknowledged_at),
        delivered_at=moved(receipt.delivered_at),
        ended_at=moved(receipt.ended_at),
    )


def so_far(receipt: Receipt) -> Receipt:
    """Return a receipt as it was when the gates closed: a stop answers what it changed, not what came later."""
    return replace(receipt, status=Status.STOPPING, nodes=(), too_late=False, ended_at=None)


def shifted_reason(reason: Reason, seconds: float) -> Reason:
    """Return a reason with its time on another clock."""
    return replace(reason, at=reason.at + seconds)


def record_of_child(run: RunNode, worker: str) -> RunRecord:
    """Return the record of a new child run."""
    parent = run.parent
    assert parent is not None, "a child"
    return RunRecord(
        id=run.id,
        name=run.name,
        parent_id=parent.id,
        root_id=run.root.id,
        owner=run.owner,
        labels=run.labels,
        status=Status.RUNNING,
        worker=worker,
        policy=run.policy,
    )


def record_at_once(outcome: Outcome[Any], seconds: float) -> OutcomeRecord | None:
    """Return the stored form of an outcome, or None if that needs code of the agent, which may be slow."""
    if outcome.error is None and _json.is_plain(outcome.result) and _json.is_plain(outcome.partial):
        return record_of_outcome(outcome, seconds)
    return None


def record_elsewhere(outcome: Outcome[Any], seconds: float, made: Callable[[OutcomeRecord], object]) -> None:
    """Make the stored form on a separate thread, without values that take too long; ``made`` is called once."""
    waiting = [made]

    def make(*, is_late: bool) -> None:
        record = record_of_outcome(outcome, seconds, is_late=is_late)
        timer.cancel()
        try:
            tell = waiting.pop()
        except IndexError:
            return  # the other call was faster
        tell(record)

    timer = control.for_stores().call_at(clock.now() + VALUE_SECONDS, partial(make, is_late=True))
    pool.submit(partial(make, is_late=False))


def record_of_outcome(outcome: Outcome[Any], seconds: float, *, is_late: bool = False) -> OutcomeRecord:
    """Return the stored form of an outcome; nothing that an agent returns or raises can make this fail.

    With ``is_late`` it calls no code of the agent.
    """
    late = f"it was not serialized within {VALUE_SECONDS} seconds"
    omitted: dict[str, str] = {}
    kept: dict[str, Any] = {}
    for name in ("result", "partial"):
        value = getattr(outcome, name)
        kept[name], why = (None, late) if is_late and not _json.is_plain(value) else _json.plain(value, VALUE_BYTES)
        if why is not None:
            omitted[name] = why
    error = None
    if outcome.error is not None:
        late_error = ErrorRecord(type=_json.name_of(outcome.error), message=late)
        error = late_error if is_late else record_of_error(outcome.error)
    return OutcomeRecord(
        status=outcome.status,
        reason=None if outcome.reason is None else shifted_reason(outcome.reason, seconds),
        rung=outcome.rung,
        clean=outcome.clean,
        error=error,
        omitted=omitted,
        **kept,
    )


def record_of_error(error: BaseException) -> ErrorRecord:
    """Return an error as text, even if its ``__str__`` raises."""
    try:
        message = _text(str(error))
    except BaseException as broken:
        message = f"its __str__ raised {_json.name_of(broken)}"
    try:
        trace = _text(trace_of(error))
    except BaseException:
        trace = ""
    return ErrorRecord(type=_text(_json.name_of(error)), message=message[:_TEXT], trace=trace[-_TEXT:])


def _text(value: str) -> str:
    return str.encode(value, errors="replace").decode()  # a lone surrogate cannot be encoded as UTF-8


def outcome_of(record: RunRecord) -> Outcome[Any]:
    """Return the outcome of a run from its record."""
    kept = record.outcome
    assert kept is not None, "it is over"
    error = None
    if kept.error is not None:
        error = AgentError(f"{kept.error.type}: {kept.error.message}")
        if kept.error.trace:
            error.add_note(kept.error.trace)
    return Outcome(
        kept.status, kept.reason, kept.rung, kept.clean, kept.result, kept.partial, error, record.ended_at or 0.0
    )


def input_of(
    agent: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of a start that are JSON, by name, and why others are left out.

    Only plain JSON types: converting anything else calls its own code, which must not delay a start.
    """
    kept: dict[str, Any] = {}
    omitted: dict[str, str] = {}
    named = _named(agent, args, kwargs)
    for name, value in named.items():
        if _json.is_plain(value):
            found, why = _json.plain(value, INPUT_BYTES // len(named))
        else:
            found, why = None, f"a value of type {_json.name_of(value)} is not kept: it is not JSON, or too large"
        if why is None:
            kept[name] = found
        else:
            omitted[name] = why
    return kept, omitted


def _named(agent: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if not args:
        return dict(kwargs)
    try:
        return dict(inspect.signature(agent).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # written in C, without a signature
        return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def _ordered(value: Any, known: dict[int, Any]) -> Any:
    """Return a value with the keys of its dicts sorted; a value that contains itself is not changed inside itself."""
    kind = type(value)
    if kind is not dict and kind is not list and kind is not tuple:
        return value
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = value
    made: Any
    if kind is dict:
        made = {
            key: _ordered(value[key], known) for key in sorted(value, key=lambda key: (_json.name_of(key), repr(key)))
        }
    else:
        made = kind([_ordered(item, known) for item in value])
    known[id(value)] = made
    return made


class _Hash:
    """A file object that keeps only a hash of what is written."""

    def __init__(self, limit: float) -> None:
        self._hash = hashlib.sha256()
        self._left = limit

    def write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("too large")
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def digest(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return a digest of a start: two starts with the same agent, arguments and options have the same digest.

    The order of the keys of a dict does not matter.
    """
    asked: Any = (name, args, dict(kwargs), dict(options))
    with contextlib.suppress(Exception):  # too deep, or a key without a repr: then the order matters
        asked = _ordered(asked, {})
    # First without a memo, so that equal strings give the same bytes, whether or not they are one object. Then with it:
    # a value that contains itself cannot be pickled without, and shared values would be written again and again.
    for is_without_memo, limit in ((True, 16e6), (False, math.inf)):
        file = _Hash(limit)
        pickler = pickle.Pickler(file)
        pickler.fast = is_without_memo
        try:
            pickler.dump(asked)
        except Exception:  # noqa: S112 - a value that cannot be pickled is compared by its repr
            continue
        return file.hexdigest()
    try:
        text = repr(asked)
    except Exception:  # nested too deeply, or its repr raises
        text = new_id()  # so no other start equals it
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
