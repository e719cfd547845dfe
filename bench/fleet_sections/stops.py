"""From a stop on one replica to the agent on another, against a bare compare-and-set + NOTIFY, and beside peers."""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection

import psycopg
from tests.fleet.postgres_server import PostgresServer

import stoppable
from fleet_sections import peers
from scratch import folder
from stoppable import Supervisor
from stoppable.records import StopRequest
from stoppable.stores.postgres import from_url
from table import Section, Target, against

Stop = Callable[[str], object]
Stopping = Callable[[str], AbstractContextManager[Stop]]


def measure_section(server: PostgresServer, quick: bool) -> Section:
    rounds, turns = (20, 1) if quick else (100, 4)
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
        *peers.rows(server, middle, quick),
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
    process = multiprocessing.get_context("spawn").Process(target=peer, args=(url, there, rounds), daemon=True)
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
    yield lambda run: store.request_stop(StopRequest(target=run))
    store.close()
