"""Stores a stop of one run or many, with everything below them; a stop of a run that is not there waits for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from stoppable._core.stop import Answer
from stoppable._core.values import Status
from stoppable.errors import RunNotFound
from stoppable.records import RunRecord, Selector, StopAnswer, StopIntent, StopRequest, StopResult, replace_fields
from stoppable.stores import rules
from stoppable.stores.base import ANY
from stoppable.stores.postgres import pg_runs
from stoppable.stores.postgres.pg_runs import Log, key_address, run_address
from stoppable.stores.postgres.pg_transaction import PAYLOAD, RECORD, RUN, WORKER, PgTransaction, payload
from stoppable.stores.sql import rows, stop_requests
from stoppable.stores.sql.queries import select_stopped
from stoppable.stores.sql.rows import Lines, Row
from stoppable.stores.sql.stop_requests import PendingStop, earlier_result, remember

# The invariant: once a stop is committed, every live run of the trees that it names has its mode or a harder one, and
# every run that is registered below them later begins stopped. No start slips through in between.
#
# Why it holds. Two things can change a tree while it is being stopped: a child is registered, or a run ends. Both lock
# a row first: ``register`` locks the parent against changes (FOR SHARE), ``finish`` locks the run. A stop locks every
# live run of the tree (FOR NO KEY UPDATE), which waits for both and lets neither begin. So a child is registered before
# its parent was locked, and is in the table, or after the commit of the stop, and finds the stop in its parent.
#
# "In the table" is not yet "seen". A statement sees what was committed when it began. If it then waits for a lock, it
# reads the locked row again afterwards, but not the rows that were added meanwhile: the child whose registration it
# waited for is missing. So the trees are locked again and again until a repetition finds nothing new
# (``_locked_trees``). All runs that this last repetition saw had been locked before it began, so none of them can have
# got a child that it missed.
#
# A run without children, which is what most stops name, needs one round trip (``_stop_leaf``). The first statement
# locks the run. The second one begins after the lock was granted, so it sees every child; if there is one, or the run
# is over or was stopped before, it changes nothing, and the stop takes the longer way. Otherwise it does all that the
# longer way does: the run, its event, the audit, the answer, the notifications. The COMMIT is sent along. Both ways set
# the same columns (``_STOPPED``). Both are needed: the longer way takes three times as long for one run, and the short
# way cannot repeat itself until a tree has no new runs.
#
# The order of all locks is: names (``tx.lock``), workers, runs by their numbers, and last the lock that makes numbers
# of events and of the audit visible in order (``tx.in_order``). ``_LOCK_LEAF`` takes that last lock for each row that
# its inner query has locked, so after it.
#
# A connection may be lost while the COMMIT is on its way, so that nobody knows whether it was performed. The short way
# keeps its answer under its own id, even without an idempotency key; a repetition finds it there.
#
# What would break it:
# - to lock and write in one statement: the first child that is born meanwhile goes on running
# - to believe the first repetition: so do its children
# - a registration that reads its parent without a lock
# - to lock runs in another order than that of their numbers, or after ``in_order``: deadlocks
# - ``ended_at IS NULL`` in the prepared statements: see ``_IS_LIVE``; it would be slow, not wrong

PART = 250
"""How many runs that a selector matches are stopped in one transaction, so that other replicas do not wait long."""

Tops = tuple[str, Sequence[Any]]
"""The statement for the numbers of the runs that a stop names, and its values."""

_VALUE = re.compile(r"%\((\w+)\)s")

_STOPPED = """mode = %(mode)s, grace = %(grace)s, reason = coalesce(reason, %(reason)s),
    stop_requested_at = coalesce(stop_requested_at, {at}),
    started_at = CASE status WHEN 'running' THEN coalesce(started_at, {at}) ELSE started_at END,
    status = CASE status WHEN 'running' THEN 'stopping' ELSE status END"""


def _prepared(name: str, sql: str) -> tuple[str, str]:
    """Return the statement that prepares another, and the one that performs it with the same values."""
    names = list(dict.fromkeys(_VALUE.findall(sql)))
    numbered = _VALUE.sub(lambda value: f"${names.index(value[1]) + 1}", sql)
    return f"PREPARE {name} AS {numbered}", f"EXECUTE {name} ({', '.join(f'%({value})s' for value in names)})"


# The plan is cached, maybe from a time with few runs, when the index of live runs looks as good as the index of ids.
# This condition does not match the index of live runs.
_IS_LIVE = "coalesce(ended_at, 'infinity') = 'infinity'"

_PREPARE_LOCK, _LOCK_LEAF = _prepared(
    "stoppable_lock",
    f"""SELECT pg_advisory_xact_lock(%(order)s) FROM (
 SELECT 1 FROM runs WHERE id = %(id)s AND {_IS_LIVE} FOR NO KEY UPDATE) AS locked""",  # noqa: S608 - our own names
)
_PREPARE_STOP, _STOP_LEAF = _prepared(
    "stoppable_stop",
    f"""
WITH moment (now) AS MATERIALIZED (SELECT coalesce(%(clock)s::float8, extract(epoch FROM clock_timestamp())::float8)),
stopped AS (
    UPDATE runs SET {_STOPPED.format(at="least(%(asked_at)s::float8, now)")},
        last_event = CASE status WHEN 'pending' THEN last_event ELSE last_event + 1 END
    FROM moment
    WHERE id = %(id)s AND (%(owner)s::text IS NULL OR owner = %(owner)s) AND {_IS_LIVE} AND mode < 0
        AND NOT EXISTS (SELECT 1 FROM runs AS child WHERE child.parent = runs.number)
        AND NOT EXISTS (SELECT 1 FROM answered WHERE key = %(key)s AND answered.owner IS NOT DISTINCT FROM %(owner)s)
    RETURNING {RECORD}
), event AS (
    INSERT INTO events (run, seq, at, type, data)
    SELECT number, last_event, stop_requested_at, 'status', %(event)s FROM stopped WHERE status <> 'pending'
), entry AS (
    INSERT INTO audit (at, action, entry)
    SELECT now, 'stop', replace(%(entry)s, %(owner_mark)s, coalesce(to_json(owner)::text, 'null')) FROM stopped, moment
), answer AS (
    INSERT INTO answered (key, owner, at, answers)
    SELECT %(key)s, %(owner)s, now, %(answers)s FROM stopped, moment
), names (name, payload) AS (
    SELECT %(worker)s || worker, json_build_array(%(worker)s || worker, %(intents)s::text)::text FROM stopped
    UNION ALL
    SELECT news.name, payload FROM stopped, unnest(%(names)s::text[], %(payloads)s::text[]) AS news (name, payload)
), notification AS MATERIALIZED (
    SELECT pg_notify(channel, CASE WHEN octet_length(payload) <= {PAYLOAD} THEN payload ELSE '' END)
    FROM moment, names JOIN followed USING (name) WHERE channel <> %(channel)s AND expires > now
)
SELECT stopped.* FROM stopped WHERE (SELECT count(*) FROM notification) >= 0
""",  # noqa: S608 - our own names; the count makes Postgres perform ``notification``
)

PREPARED = (_PREPARE_LOCK, _PREPARE_STOP)
"""What prepares the writing connection for stops: parsing and planning takes longer than performing them."""

_LOCK_TREES = """
WITH RECURSIVE tops (top) AS MATERIALIZED ({}), below (node) AS (
    SELECT top FROM tops
    UNION
    SELECT number FROM runs JOIN below ON parent = node
)
SELECT number, id, worker, status, mode, reason, last_event, is_truncated FROM runs
WHERE number IN (SELECT node FROM below) AND ended_at IS NULL ORDER BY number FOR NO KEY UPDATE OF runs
"""
_STOP_NODES = f"""
UPDATE runs SET {_STOPPED.format(at="%(at)s::float8")}, last_event = ends.last
FROM unnest(%(numbers)s::bigint[], %(lasts)s::bigint[]) AS ends (number, last) WHERE runs.number = ends.number
"""  # noqa: S608 - our own names
_RECORDS = f"SELECT {RECORD} FROM runs WHERE number IN ({{}}) ORDER BY number"  # noqa: S608 - our own names
_NUMBERS = "SELECT unnest(%s::bigint[])"


def request_stop(tx: PgTransaction, pending: PendingStop) -> StopResult:
    """Store a stop."""
    request = pending.request
    target = request.target
    if isinstance(target, str) and not (request.dry_run or request.hold):
        result = _stop_leaf(tx, target, pending)
        if result is not None:
            return result
    if (earlier := earlier_result(tx, request, pending.id if tx.is_repeated else None)) is not None:
        return earlier
    rules.check_waiting(request)
    on_hold = rules.hold_selector(target, request.owner) if request.hold else None
    if request.dry_run:
        return _preview(tx, request, on_hold)
    if on_hold is not None:
        tx.lock("holds", "")
    if isinstance(target, str):
        result = _stop_tree(tx, target, request)
    else:
        if target.key is not None:
            tx.lock("key", target.key)
        result = _stop_many(tx, target, pending, on_hold)
    if not (isinstance(target, str) and result.waits_until):
        remember(tx, request, result)
    return result


def _preview(tx: PgTransaction, request: StopRequest, on_hold: Selector | None) -> StopResult:
    target = request.target
    sql, values = select_stopped(tx, target, request.owner)
    records = tx.all(_RECORDS.format(sql), values)
    if not records and isinstance(target, str) and request.if_unknown != "wait":
        raise RunNotFound(target)
    return StopResult(
        answers=tuple(_answer(rows.record(row), request.intent) for row in records),
        hold=None if on_hold is None else stop_requests.new_hold(tx, on_hold, request.intent),
    )


def _answer(record: RunRecord, intent: StopIntent) -> StopAnswer:
    return StopAnswer(record=record, answer=rules.answer_of(record, intent))


def _stop_leaf(tx: PgTransaction, run_id: str, pending: PendingStop) -> StopResult | None:
    """Stop a run without children and commit, or return None: nothing changed, and another transaction has begun."""
    request, intent = pending.request, pending.request.intent
    event = Lines([rules.status_of_stop(Status.STOPPING, intent)]).rows[0]
    answers = {run_id: Answer.ACCEPTED}
    result = {"runs": answers, "hold": None, "owner": pending.id}  # the statement puts the owner of the run there
    reason = rows.encode(intent.reason)
    intents = rows.encode([(run_id, intent.mode.rank, intent.grace, reason)])
    names = [RUN + run_id, RUN + ANY]
    if request.idempotency_key is not None:
        tx.lock("answer", request.idempotency_key)
    tx.perform(_LOCK_LEAF, {"order": tx.order_key(), "id": run_id})
    reply = tx.perform(
        _STOP_LEAF,
        {
            "clock": tx.clock(),
            "mode": intent.mode.rank,
            "grace": intent.grace,
            "reason": reason,
            "asked_at": request.asked_at,
            "id": run_id,
            "owner": request.owner,
            "key": request.idempotency_key or pending.id,
            "event": event[2],
            "entry": stop_requests.audit_text(rules.audit_entry(0, 0.0, "stop", intent, run_id, result)),
            "owner_mark": rows.encode(pending.id),
            "answers": rows.encode(answers),
            "worker": WORKER,
            "intents": intents if len(intents) <= PAYLOAD // 2 else "",  # with a backslash before each quote
            "names": names,
            "payloads": [payload(name, "") for name in names],
            "channel": tx.channel,
        },
    )
    tx.commit(is_repeatable=True)  # it finds its own answer
    row = reply.fetchone()
    if row is None:
        tx.begin()
        return None
    record = rows.record(row)
    tx.touch(run_id)
    tx.wake(record.worker)
    return StopResult(answers=(StopAnswer(record=record, answer=Answer.ACCEPTED),))


def _stop_tree(tx: PgTransaction, run_id: str, request: StopRequest) -> StopResult:
    tx.lock("run", run_id)
    answers = _stop(tx, select_stopped(tx, run_id, request.owner), request)
    if answers:
        return StopResult(answers=answers)
    if request.if_unknown != "wait":
        raise RunNotFound(run_id)
    return StopResult(waits_until=stop_requests.wait_for_run(tx, run_address(run_id), run_id, request))


def _stop_many(tx: PgTransaction, target: Selector, pending: PendingStop, on_hold: Selector | None) -> StopResult:
    request, progress = pending.request, pending.progress
    numbers, hold, answers = progress.numbers, progress.hold, list(progress.answers)
    if numbers is None:
        numbers = [number for (number,) in tx.all(*select_stopped(tx, target, request.owner))]
        hold = None if on_hold is None else stop_requests.new_hold(tx, on_hold, request.intent)
        if hold is not None:
            stop_requests.insert_hold(tx, hold)
    first = progress.done
    for start in range(first, len(numbers), PART):
        if start > first:
            tx.next_part()
        answers += _stop(tx, (_NUMBERS, (numbers[start : start + PART],)), request)
        tx.later.append(partial(progress.keep, numbers, start + PART, hold, tuple(answers)))
    until = None
    if not numbers and request.if_unknown != "ignore":
        until = stop_requests.wait_for_key(tx, key_address(target.key), target, request)
    return StopResult(answers=tuple(answers), hold=hold, waits_until=until)


def _stop(tx: PgTransaction, tops: Tops, request: StopRequest) -> tuple[StopAnswer, ...]:
    """Stop runs with everything below them, wake their workers, and return answers for the named runs."""
    nodes, named = _locked_trees(tx, tops)
    intent, at = request.intent, rules.request_time(request.asked_at, tx.now())
    lasts = _stop_nodes(tx, [node for node in nodes if node[4] < intent.mode.rank], intent, at)
    answers = []
    for row in named:
        record = rows.record(row)
        answer = rules.answer_of(record, intent)
        if row[-1] in lasts:
            record = _stopped(record, intent, at, lasts[row[-1]])
        answers.append(StopAnswer(record=record, answer=answer))
    return tuple(answers)


def _locked_trees(tx: PgTransaction, tops: Tops) -> tuple[list[Row], list[Row]]:
    """Lock trees until nothing new appears, and return their live nodes and the runs that were named.

    The first repetition is sent together with the first statement, and is nearly always enough.
    """
    sql, values = _LOCK_TREES.format(tops[0]), tops[1]
    first = tx.ask(sql, values)
    while True:
        again, named = tx.ask(sql, values), tx.ask(_RECORDS.format(tops[0]), values)
        count, nodes = len(first.fetchall()), again.fetchall()
        if len(nodes) <= count:
            return nodes, named.fetchall()
        first = tx.ask(sql, values)


def _stop_nodes(tx: PgTransaction, nodes: Sequence[Row], intent: StopIntent, at: float) -> dict[int, int]:
    """Write a stop to locked runs, and return where the log of each ends now."""
    reason = rows.encode(intent.reason)
    logs = []
    for number, run_id, worker, status, _, earlier, last, is_truncated in nodes:
        log = Log(number, last, is_truncated)
        logs.append(log)
        before = None if earlier is None else rows.stop_of(0, None, earlier)
        if status != Status.PENDING.value:
            event = rules.status_of_stop(Status.STOPPING, rules.escalate(before, intent))
            log.add(Lines([event]), tx.events_kept, at)
        tx.touch(run_id)
        tx.wake(worker, (run_id, intent.mode.rank, intent.grace, earlier or reason))
    lasts = {log.number: log.last for log in logs}
    if logs:
        values = {"mode": intent.mode.rank, "grace": intent.grace, "reason": reason, "at": at}
        tx.run(_STOP_NODES, {**values, "numbers": list(lasts), "lasts": list(lasts.values())})
        pg_runs.write_logs(tx, logs)
    return lasts


def _stopped(record: RunRecord, intent: StopIntent, at: float, last: int) -> RunRecord:
    """Return a record after the stop; as ``_STOPPED``, which saves another round trip to read it."""
    is_running = record.status is Status.RUNNING
    return replace_fields(
        record,
        stop=rules.escalate(record.stop, intent),
        stop_requested_at=at if record.stop_requested_at is None else record.stop_requested_at,
        started_at=at if is_running and record.started_at is None else record.started_at,
        status=Status.STOPPING if is_running else record.status,
        last_event=last,
    )
