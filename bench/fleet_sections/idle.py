"""What a replica asks of the database while it does nothing, beside more and more live runs of others."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from tests.fleet.postgres_server import PostgresServer

from fleet_sections.copies import make_copies
from scratch import folder
from stoppable import sync
from stoppable.records import RunRecord
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url
from table import Row, Section

LIVE = (10, 1_000, 20_000)


def measure_section(server: PostgresServer, quick: bool) -> Section:
    seconds = 5 if quick else 20
    url = f"{server.url}?schema=idle&locks={folder()}"
    owner = from_url(url)
    owner.open()
    owner.open_worker(WorkerInfo(id="other"), 36_000).result(30)
    owner.register(RunRecord(id="first", name="agent", worker="other"), "first").result(30)
    owner.close()  # its worker keeps its lease and its lock
    rows: list[Row] = []
    _without_autovacuum(server.url)  # its transactions are counted too
    for live in LIVE[:2] if quick else LIVE:
        make_copies(server.url, "idle", "first", live)
        with sync.Supervisor(url):
            time.sleep(2)
            before, began = _transactions(server.url), time.monotonic()
            time.sleep(seconds)
            count = _transactions(server.url) - before - 1
            rows.append(
                Row(name=f"{live:,} live runs", value=count / (time.monotonic() - began), unit="transactions a second")
            )
    notes = ["A supervisor with the default ttl of 30 s. The live runs are those of another worker."]
    return Section(title="What an idle replica asks", rows=rows, notes=notes)


def _transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row: Any = connection.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    return int(row[0])


def _without_autovacuum(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
