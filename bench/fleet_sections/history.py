"""What calls take with a long history, against a store that has only what they return."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.fleet.filled import FINISHED, LIVE, fill
from tests.fleet.postgres_server import PostgresServer

from scratch import folder
from stoppable._core.values import Status
from stoppable.records import Draft, EventType, Filter, RunRecord, StopRequest
from stoppable.stores.base import Store, StoreFuture, WorkerInfo
from stoppable.stores.postgres import from_url
from stoppable.stores.sqlite import SqliteStore
from table import Row, Section, Target, against

T = TypeVar("T")

PAGE = 100
LISTS = {
    "list": Filter(),
    "list by status": Filter(status=frozenset({Status.RUNNING})),
    "list by agent": Filter(agent="agent 7"),
    "list by owner": Filter(owner="owner 7"),
    "list by label": Filter(labels={"team": "team 7"}),
}
_numbers = itertools.count()

# As in the database of `tests/fleet/filled.py`: each tree has ten runs, and every sixth tree is live.
_FILE = """
WITH RECURSIVE numbers (n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)
INSERT INTO runs (number, id, request, parent, parent_id, root_id, name, owner, labels, spec, created_at, worker,
 status, epoch, started_at, ended_at, outcome, key)
SELECT n, 'run ' || n, 'r', CASE WHEN n % 10 > 0 THEN n - n % 10 END,
 CASE WHEN n % 10 > 0 THEN 'run ' || (n - n % 10) END,
 'run ' || (n - n % 10), 'agent ' || (n / 10 % 49), 'owner ' || (n / 10 % 199),
 json_object('team', 'team ' || (n % 299), 'env', 'live'), spec, n, 'worker 0',
 CASE WHEN n / 10 % 6 = 0 THEN 'running' ELSE 'completed' END, 1, n, CASE WHEN n / 10 % 6 > 0 THEN n + 1 END,
 CASE WHEN n / 10 % 6 > 0 THEN '{"status": "completed"}' END, '"key ' || (n / 60) || '"'
FROM runs, numbers WHERE id = 'first'
"""
_FILE_EVENTS = """
WITH RECURSIVE numbers (n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM numbers WHERE n < :last)
INSERT INTO events (run, seq, at, type, data)
SELECT n, 1 + seq.value, n, 'status', '{"status": "running"}' FROM numbers, json_each('[0, 1]') AS seq
"""


def measure_postgres(server: PostgresServer, quick: bool) -> Section:
    """Return the table of Postgres."""

    def opened(schema: str) -> Store:
        store = from_url(f"{server.url}?schema={schema}&locks={folder()}")
        store.open()
        return store

    few, many = opened("few"), opened("many")
    _fill_few(few)
    fill(many, server.url, "many")
    return _compared("A long history on Postgres", few, many, quick)


def measure_file(_server: PostgresServer, quick: bool) -> Section:
    """Return the table of a file."""
    path = folder() / "many.db"
    many = SqliteStore(path)
    many.open()
    _begin(many)
    many.register(RunRecord(id="first", name="agent", worker="worker 0"), "first").result(30)
    _fill_file(path)
    few = SqliteStore(folder() / "few.db")
    few.open()
    _fill_few(few)
    return _compared("A long history in a file (SQLite)", few, many, quick)


def _begin(store: Store) -> None:
    store.open_worker(WorkerInfo(id="worker 0"), 36_000).result(30)


def _fill_few(store: Store) -> None:
    """Have a page of runs that every list matches, in trees of ten."""
    _begin(store)
    for number in range(PAGE):
        parent = None if number % 10 == 0 else f"run {number - number % 10}"
        record = RunRecord(
            id=f"run {number}",
            name="agent 7",
            owner="owner 7",
            labels={"team": "team 7", "env": "live"},
            worker="worker 0",
            parent_id=parent,
        )
        store.register(record, "r").result(30)
        running = Draft(type=EventType.STATUS, data={"status": "running"})
        store.append(record.id, 1, [running, running]).result(30)


def _fill_file(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_FILE, {"last": FINISHED + LIVE + 9})
        connection.execute(_FILE_EVENTS, {"last": FINISHED + LIVE + 9})
        connection.execute("INSERT INTO outcomes SELECT number, outcome FROM runs WHERE ended_at IS NOT NULL")
        connection.execute("INSERT INTO inputs SELECT number, '[null, {}]' FROM runs")


def _compared(title: str, few: Store, many: Store, quick: bool) -> Section:
    rounds = 5 if quick else 40
    in_few, in_many = _calls(few, "run 0"), _calls(many, "run 6000")
    rows: list[Row] = []
    for name in in_few:
        found: dict[str, list[float]] = {"few": [], "many": []}
        for _ in range(rounds):
            found["few"].append(in_few[name]())
            found["many"].append(in_many[name]())
        floor, ours = statistics.median(found["few"]), statistics.median(found["many"])
        rows.append(against(floor, name, ours, target=Target(limit=2), unit="ms"))
    few.close()
    many.close()
    notes = [
        f"{FINISHED:,} finished and {LIVE:,} live runs, against a store that has only the {PAGE} runs of one page.",
        f"A list returns {PAGE} runs, a tree ten.",
    ]
    return Section(title=title, rows=rows, notes=notes)


def _calls(store: Store, root: str) -> dict[str, Callable[[], float]]:
    """Return calls that say how many milliseconds they took."""

    def lists(wanted: Filter) -> Callable[[], float]:
        def call() -> float:
            found, took = _timed(lambda: store.query(wanted, limit=PAGE))
            assert len(found.runs) == PAGE
            return took

        return call

    def tree() -> float:
        found, took = _timed(lambda: store.tree(root))
        assert len(found) == 10
        return took

    def start() -> tuple[str, float]:
        run = f"new {next(_numbers)}"
        record = RunRecord(id=run, name="agent", owner="owner", labels={"team": "new"}, worker="worker 0")
        return run, _timed(lambda: store.register(record, run))[1]

    def stop() -> float:
        run, _ = start()
        store.append(run, 1, [Draft(type=EventType.STATUS, data={"status": "running"})]).result(30)
        return _timed(lambda: store.request_stop(StopRequest(target=run)))[1]

    return {name: lists(wanted) for name, wanted in LISTS.items()} | {
        "tree": tree,
        "start": lambda: start()[1],
        "stop": stop,
    }


def _timed(call: Callable[[], StoreFuture[T]]) -> tuple[T, float]:
    began = time.perf_counter()
    answer = call().result(30)
    return answer, (time.perf_counter() - began) * 1e3
