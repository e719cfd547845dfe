"""From a stop to the work in another process, as other engines do it on the same machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.fleet.postgres_server import PostgresServer
from tests.ports import held_port

from reports import Reports
from scratch import folder
from table import Row, against

HERE = Path(__file__).parents[1]
SECONDS = 60

Once = Callable[[], float]
"""Begins some work in another process, stops it, and returns the milliseconds until it heard that."""
Peer = Callable[[str, Reports], contextlib.AbstractContextManager[Once]]


def rows(server: PostgresServer, floor: float, quick: bool) -> list[Row]:
    """Return a row for each engine, or why there is none."""
    found = [_row("DBOS: cancel_workflow → its step", "dbos", _dbos, server.url, floor, quick)]
    with _redis() as broker:
        found += [
            _row("Celery: revoke(terminate) → the task's process", "celery", _celery, broker, floor, quick),
            _row("arq: abort → the job", "arq", _arq, broker, floor, quick),
        ]
    return found


def _row(name: str, package: str, peer: Peer, url: str | None, floor: float, quick: bool) -> Row:
    if find_spec(package) is None:
        return Row(name=name, note="not installed")
    if url is None:
        return Row(name=name, note="redis-server is not installed")
    reports = Reports()
    with contextlib.closing(reports), peer(url, reports) as once:
        once()  # connects
        return against(floor, name, statistics.median(once() for _ in range(3 if quick else 11)), unit="ms")


@contextlib.contextmanager
def _redis() -> Iterator[str | None]:
    """Start a Redis that keeps every write, as a fleet needs it, and give its URL; None where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        print("redis-server is not installed: Celery and arq are not measured", file=sys.stderr)
        yield None
        return
    with held_port() as port:
        durable = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
        with _process([program, "--port", str(port), "--bind", "127.0.0.1", *durable], {}):
            url = f"redis://127.0.0.1:{port}/0"
            connection = import_module("redis").Redis.from_url(url)
            _wait(connection.ping)
            connection.close()
            yield url


def _wait(answers: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            answers()
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@contextlib.contextmanager
def _process(command: list[str], variables: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **variables, "PYTHONPATH": str(HERE)}, cwd=folder(),
                               text=True, **quiet, **options)  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _heard(reports: Reports, stop: Callable[[], object]) -> float:
    assert reports.next() == "ready"
    time.sleep(random.uniform(0.002, 1))  # at any moment between two looks of those who poll
    began = time.monotonic()
    stop()
    return (float(reports.next()) - began) * 1e3


@contextlib.contextmanager
def _celery(broker: str, reports: Reports) -> Iterator[Once]:
    app = import_module("celery").Celery("bench", broker=broker)
    options = ("--pool", "prefork", "--concurrency", "1", "--without-mingle", "--without-gossip")
    command = [sys.executable, "-m", "celery", "-A", "peer_celery", "worker", *options]
    with _process(command, {"PEER_BROKER": broker, **reports.environment}):

        def once() -> float:
            task = app.send_task("forever")
            return _heard(reports, lambda: app.control.revoke(task.id, terminate=True))

        yield once
        app.close()


@contextlib.contextmanager
def _arq(broker: str, reports: Reports) -> Iterator[Once]:
    connections = import_module("arq.connections")
    with (
        _process([sys.executable, str(HERE / "peer_arq.py")], {"PEER_BROKER": broker, **reports.environment}),
        asyncio.Runner() as runner,
    ):
        pool = runner.run(connections.create_pool(connections.RedisSettings.from_dsn(broker)))

        async def abort(job: Any) -> None:
            with contextlib.suppress(TimeoutError):  # it is sent: what it waits for is the end of the job
                await job.abort(timeout=0.001)

        def once() -> float:
            job = runner.run(pool.enqueue_job("forever"))
            return _heard(reports, lambda: runner.run(abort(job)))

        yield once
        runner.run(pool.aclose())


@contextlib.contextmanager
def _dbos(url: str, reports: Reports) -> Iterator[Once]:
    database = f"{url.rpartition('/')[0]}/dbos"
    client_of = import_module("dbos").DBOSClient
    variables = {"PEER_DATABASE": database, **reports.environment}
    command = [sys.executable, str(HERE / "peer_dbos.py")]
    with _process(command, variables, stdin=subprocess.PIPE) as process:

        def start() -> str:
            name = uuid.uuid4().hex
            process.stdin.write(name + "\n")
            process.stdin.flush()
            return name

        first = start()
        assert reports.next() == "ready"  # it has made its database
        client = client_of(system_database_url=database)
        client.cancel_workflow(first)
        reports.next()
        yield lambda: _heard(reports, partial(client.cancel_workflow, start()))
        client.destroy()
