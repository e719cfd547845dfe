"""Measures a fleet on Postgres: from a stop on one replica to the agent on another, and what an idle replica asks.

The floor is a bare compare-and-set with a NOTIFY to another process, in the same run. Needs what `make test-fleet`
installs; a full run writes bench/results/fleet.md.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg

from machine import facts
from scratch import folder
from table import Row, Section, Target, against, as_markdown, as_text, summary, write

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fleet.postgres_server import PostgresServer

import stoppable
from stoppable import Supervisor, sync
from stoppable.records import RunRecord, StopIntent
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url

RESULTS = Path(__file__).parent / "results" / "fleet.md"
METHOD = (
    "Written by `.venv-fleet/bin/python bench/fleet.py` after `make test-fleet`. Floor and ours are measured in turns, "
    "in one run."
)
LIVE = (10, 1_000, 20_000)

Stop = Callable[[str], object]
Stopping = Callable[[str], AbstractContextManager[Stop]]


def across(server: PostgresServer, quick: bool) -> Section:
    """From a stop on one replica to the agent on another."""
    rounds, turns = (20, 1) if quick else (100, 3)
    url = f"{server.url}?schema=bench&locks={folder()}"
    bare: list[float] = []
    heard: list[float] = []
    for _ in range(turns):
        bare += _across(server.url, _bare_peer, _bare_stop, rounds)
        heard += _across(url, _our_peer, _our_stop, rounds)
    middle, late, ours = statistics.median(bare), _p99(bare), statistics.median(heard)
    rows = [
        against(middle, "compare-and-set + NOTIFY → another process (floor)", middle, unit="ms"),
        against(
            middle,
            "stop → the agent on another replica halts",
            ours,
            target=Target(limit=3),
            unit="ms",
        ),
        against(late, "p99 of the floor", late, unit="ms"),
        against(late, "p99 of the stop", _p99(heard), target=Target(limit=5), unit="ms"),
    ]
    notes = [
        f"{len(heard)} stops. The floor commits one UPDATE and one NOTIFY; a process that does nothing else hears it.",
        "Ours also writes an event and an audit entry, and wakes a task in the loop of the other process.",
    ]
    return Section(title="A stop from another replica", rows=rows, notes=notes)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def _across(url: str, peer: Callable[..., None], stop: Stopping, rounds: int) -> list[float]:
    """Return the milliseconds of each stop."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=peer, args=(url, there, rounds))
    process.start()
    found = []
    assert here.poll(60), "the other process is not ready"
    with stop(url) as send:
        for _ in range(rounds):
            assert here.poll(60), "the next run does not begin"
            run = here.recv()
            time.sleep(0.002)
            began = time.monotonic()
            send(run)
            assert here.poll(60), "the stop did not arrive"
            found.append((here.recv() - began) * 1e3)
    process.join(60)
    return found


def _bare_peer(url: str, there: Connection, rounds: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bare (id TEXT PRIMARY KEY, level INTEGER NOT NULL)")
        connection.execute("DELETE FROM bare")
        connection.execute("LISTEN bare")
        for number in range(rounds):
            connection.execute("INSERT INTO bare VALUES (%s, 0)", (str(number),))
            there.send(str(number))
            for _ in connection.notifies(stop_after=1):
                there.send(time.monotonic())


@contextmanager
def _bare_stop(url: str) -> Iterator[Stop]:
    with psycopg.connect(url, autocommit=True) as connection:

        def send(run: str) -> None:
            with connection.pipeline():
                connection.execute("BEGIN")
                connection.execute("UPDATE bare SET level = 1 WHERE id = %s AND level < 1", (run,))
                connection.execute("SELECT pg_notify('bare', %s)", (run,))
                connection.execute("COMMIT")

        yield send


def _our_peer(url: str, there: Connection, rounds: int) -> None:
    async def body() -> None:
        try:
            await stoppable.sleep(3600)
        finally:
            there.send(time.monotonic())

    async def main() -> None:
        async with Supervisor(url) as supervisor:
            for _ in range(rounds):
                handle = await supervisor.start(body)
                while (await handle.record()).status == "pending":
                    await asyncio.sleep(0.001)
                there.send(handle.id)
                await handle.outcome()

    asyncio.run(main())


@contextmanager
def _our_stop(url: str) -> Iterator[Stop]:
    store = from_url(url)
    store.open()
    yield lambda run: store.request_stop(run, StopIntent())
    store.close()


# What an idle replica asks


def idle(server: PostgresServer, quick: bool) -> Section:
    """Count the transactions of a replica that does nothing, beside more and more live runs of others."""
    seconds = 5 if quick else 30
    url = f"{server.url}?schema=idle&locks={folder()}"
    owner = from_url(url)
    owner.open()
    owner.open_worker(WorkerInfo(id="other"), 36_000).result(30)
    owner.register(RunRecord(id="first", name="agent", worker="other"), "first").result(30)
    rows: list[Row] = []
    for live in LIVE[:2] if quick else LIVE:
        _fill(server.url, live)
        with sync.Supervisor(url):
            time.sleep(2)
            before, began = _transactions(server.url), time.monotonic()
            time.sleep(seconds)
            count = _transactions(server.url) - before - 1
            rows.append(
                Row(name=f"{live:,} live runs", value=count / (time.monotonic() - began), unit="transactions a second")
            )
    owner.close()
    notes = [
        (
            "A supervisor with the default ttl of 30 s and an open store beside it: both try the connection that "
            "listens every 2 s."
        )
    ]
    return Section(title="What an idle replica asks", rows=rows, notes=notes)


def _fill(url: str, live: int) -> None:
    """Have so many live runs, as copies of the first."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'idle' AND table_name = 'runs'"
        ).fetchall()
        names = [name for (name,) in found if name not in {"number", "id"}]
        listed = ", ".join(names)
        connection.execute(
            f"INSERT INTO idle.runs (id, {listed}) SELECT 'copy-' || g, {listed} FROM idle.runs,"
            f" generate_series((SELECT count(*) FROM idle.runs), {live - 1}) AS g WHERE id = 'first'"
        )


def _transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row: Any = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    return int(row[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    options = parser.parse_args()
    server = PostgresServer()
    try:
        sections = [across(server, options.quick), idle(server, options.quick)]
    finally:
        server.close()
    last_line = summary("fleet", sections)
    print("\n".join(as_text(section) for section in sections) + f"\n\n{last_line}")
    if not options.quick:
        about = facts(("stoppable", "psycopg"))
        write(RESULTS, as_markdown("A fleet on Postgres, measured", METHOD, about, sections, last_line))


if __name__ == "__main__":
    main()
