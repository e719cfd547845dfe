"""Stops one run in one round trip, if it is live, has no children and was not stopped before, as is usual.

Everything is one statement, and its COMMIT is sent with it. If the run is in another state, the statement changes
nothing and the stop takes the longer way (``stops``). The writing connection has it prepared, because parsing and
planning it takes longer than performing it.
"""

from __future__ import annotations

import re

from stoppable._core.state import Status
from stoppable._core.stop import Answer
from stoppable.records import StopAnswer, StopResult
from stoppable.stores import listeners, rules
from stoppable.stores.postgres.rows import RECORD
from stoppable.stores.postgres.transaction import PAYLOAD, RUN, WORKER, Transaction, payload
from stoppable.stores.sql import holds, rows
from stoppable.stores.sql.requests import StopRequest

_VALUE = re.compile(r"%\((\w+)\)s")


def _prepared(name: str, sql: str) -> tuple[str, str]:
    """Return the statement that prepares another, and the one that performs it with the same values."""
    names = list(dict.fromkeys(_VALUE.findall(sql)))
    numbered = _VALUE.sub(lambda found: f"${names.index(found[1]) + 1}", sql)
    return f"PREPARE {name} AS {numbered}", f"EXECUTE {name} ({', '.join(f'%({value})s' for value in names)})"


# The plan is cached, maybe from a time with few runs, when the index of live runs looks as good as the index of ids.
# This condition does not match the index of live runs.
_IS_LIVE = "coalesce(ended_at, 'infinity') = 'infinity'"

# First a lock: the next statement then sees children that were registered while this one waited, and its numbers become
# visible in order.
_PREPARE_LOCK, _LOCK = _prepared(
    "stoppable_lock",
    f"""SELECT pg_advisory_xact_lock(%(order)s) FROM (
 SELECT 1 FROM runs WHERE id = %(id)s AND {_IS_LIVE} FOR NO KEY UPDATE) AS locked""",  # noqa: S608 - our own names
)
_PREPARE_STOP, _STOP = _prepared(
    "stoppable_stop",
    f"""
WITH moment (now) AS MATERIALIZED (SELECT coalesce(%(clock)s::float8, extract(epoch FROM clock_timestamp())::float8)),
stopped AS (
    UPDATE runs SET mode = %(mode)s, grace = %(grace)s, reason = %(reason)s,
        stop_requested_at = least(%(asked_at)s::float8, now),
        started_at = CASE status WHEN 'running' THEN coalesce(started_at, least(%(asked_at)s::float8, now))
            ELSE started_at END,
        last_event = CASE status WHEN 'pending' THEN last_event ELSE last_event + 1 END,
        status = CASE status WHEN 'running' THEN 'stopping' ELSE status END
    FROM moment
    WHERE id = %(id)s AND (%(owner)s::text IS NULL OR owner = %(owner)s) AND {_IS_LIVE} AND mode < 0
        AND NOT EXISTS (SELECT 1 FROM runs AS child WHERE child.parent = runs.number)
        AND NOT EXISTS (SELECT 1 FROM answered WHERE key = %(key)s AND answered.owner IS NOT DISTINCT FROM %(owner)s)
    RETURNING {RECORD}
), logged AS (
    INSERT INTO events (run, seq, at, type, data)
    SELECT number, last_event, stop_requested_at, 'status', %(event)s FROM stopped WHERE status <> 'pending'
), noted AS (
    INSERT INTO audit (at, action, entry)
    SELECT now, 'stop', replace(%(entry)s, %(owner_mark)s, coalesce(to_json(owner)::text, 'null')) FROM stopped, moment
), kept AS (
    INSERT INTO answered (key, owner, at, answers)
    SELECT %(key)s, %(owner)s, now, %(answers)s FROM stopped, moment
), names (name, payload) AS (
    SELECT %(worker)s || worker, json_build_array(%(worker)s || worker, %(intents)s::text)::text FROM stopped
    UNION ALL
    SELECT told.name, payload FROM stopped, unnest(%(names)s::text[], %(payloads)s::text[]) AS told (name, payload)
), told AS MATERIALIZED (
    SELECT pg_notify(channel, CASE WHEN octet_length(payload) <= {PAYLOAD} THEN payload ELSE '' END)
    FROM moment, names JOIN followed USING (name) WHERE channel <> %(channel)s AND expires > now
)
SELECT stopped.* FROM stopped WHERE (SELECT count(*) FROM told) >= 0
""",  # noqa: S608 - our own names; the count makes Postgres perform ``told``
)

PREPARED = (_PREPARE_LOCK, _PREPARE_STOP)
"""The statements that prepare a connection for this."""


def stop(tx: Transaction, run_id: str, request: StopRequest) -> StopResult | None:
    """Stop a run and commit, or return None: nothing was changed, and another transaction has begun."""
    intent = request.intent
    told = rows.Lines([rules.status_of_stop(Status.STOPPING, intent)]).rows[0]
    answers = {run_id: Answer.ACCEPTED}
    result = {"runs": answers, "hold": None, "owner": request.id}  # the statement puts the owner of the run there
    reason = rows.encode(intent.reason)
    intents = rows.encode([(run_id, intent.mode.rank, intent.grace, reason)])
    names = [RUN + run_id, RUN + listeners.ANY]
    if request.idempotency_key is not None:
        tx.lock("answer", request.idempotency_key)
    tx.perform(_LOCK, {"order": tx.order_key(), "id": run_id})
    asked = tx.perform(
        _STOP,
        {
            "clock": tx.clock(),
            "mode": intent.mode.rank,
            "grace": intent.grace,
            "reason": reason,
            "asked_at": request.asked_at,
            "id": run_id,
            "owner": request.owner,
            "key": request.idempotency_key or request.id,
            "event": told[2],
            "entry": holds.entry_text(rules.audit_entry(0, 0.0, "stop", intent, run_id, result)),
            "owner_mark": rows.encode(request.id),
            "answers": rows.encode(answers),
            "worker": WORKER,
            "intents": intents if len(intents) <= PAYLOAD // 2 else "",  # with a backslash before each quote
            "names": names,
            "payloads": [payload(name, "") for name in names],
            "channel": tx.channel,
        },
    )
    tx.commit(is_repeatable=True)  # it finds its own answer
    row = asked.fetchone()
    if row is None:
        tx.begin()
        return None
    record = rows.record(row)
    tx.touch(run_id)
    tx.wake(record.worker)
    return StopResult(answers=(StopAnswer(record=record, answer=Answer.ACCEPTED),))
