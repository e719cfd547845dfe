"""Stops while thousands of readers of a large log read nothing.

``python unread.py PORT RUN COUNT`` is the readers: it opens so many streams of a run, says so, and reads nothing of
them until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median, quantiles

from connection import Connection, usage
from servers import ours, server
from table import Row, Section, Target, against
from workloads import Stoppable

EVENTS, EVENT_BYTES = 40, 900_000
RECEIVE_BUFFER = 4096
OPEN_FILES = 16_384
STOP = {"mode": "cooperative"}
BESIDE_STOPS = 0.02  # seconds between two stops: the server is not kept busy by them
NOTES = [
    f"each asks on its own connection for a run with {EVENTS} events of {EVENT_BYTES / 1e6:g} MB, and takes nothing",
    "a stop: POST /runs/{id}/stop of a live run, from the request to its answer, one after the other; in a SQLite file",
    "while they connect, the server has their requests to answer too, on its one core",
]


async def unread(quick: bool) -> Section:
    """Measure stops without such readers, while they connect, and beside them; and what memory they take."""
    readers, count = (500, 50) if quick else (4_000, 400)
    _raise_open_files()
    with tempfile.TemporaryDirectory() as folder, server(ours(f"sqlite:///{folder}/runs.db", "one-core")) as port:
        control = await Connection.open(port)
        run_id = await Stoppable().started(control, "large", {"events": EVENTS, "size": EVENT_BYTES})
        await control.follow("GET", f"/runs/{run_id}/events?after={EVENTS}", until=b"progress")
        control = await Connection.open(port)
        await _stops(port, count // 4)  # for what is made once
        alone = await _stops(port, count)
        _, before = await usage(port)
        async with _readers(port, run_id, readers) as opened:
            connecting = await _stops_until(port, opened)
            beside = await _stops(port, count)
            _, resident = await usage(port)
        control.close()
    late = _p99(alone)
    rows = [
        Row(name="a stop without readers, median", value=median(alone), unit="ms"),
        against(late, "a stop without readers, p99 (floor)", late, unit="ms"),
        Row(name=f"a stop beside {readers:,} readers, median", value=median(beside), unit="ms"),
        against(late, f"a stop beside {readers:,} readers, p99", _p99(beside), unit="ms", target=Target(limit=5)),
        against(late, "a stop while they connect, p99", _p99(connecting), unit="ms"),
        Row(
            name="what they add to the memory of the server",
            value=(resident - before) / 1e6,
            unit="MB",
            target=Target(limit=200, absolute=True),
        ),
    ]
    return Section(title="Readers that read nothing", rows=rows, notes=NOTES)


@contextlib.asynccontextmanager
async def _readers(port: int, run_id: str, count: int) -> AsyncIterator[asyncio.Future[bytes]]:
    """Run the readers in a process of their own, so that they do not delay us; yield what waits until all are there."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        Path(__file__),
        *map(str, (port, run_id, count)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield asyncio.ensure_future(process.stdout.readline())
    finally:
        process.stdin.close()
        await process.wait()


async def _stops_until(port: int, opened: asyncio.Future[bytes]) -> list[float]:
    taken: list[float] = []
    while not opened.done() or len(taken) < 2:
        taken += await _stops(port, 1)
    assert await opened == b"open\n", "the readers could not connect"
    return taken


async def _stops(port: int, count: int) -> list[float]:
    """Return the milliseconds that each stop took."""
    control = await Connection.open(port)
    taken = []
    for _ in range(count):
        run_id = await Stoppable().started(control, "waiter")
        await asyncio.sleep(BESIDE_STOPS)
        began = time.perf_counter()
        await control.ask("POST", f"/runs/{run_id}/stop", STOP)
        taken.append((time.perf_counter() - began) * 1000)
    control.close()
    return taken


def _p99(values: list[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]


def _raise_open_files() -> None:
    """Let this process and those that it starts open as many files as they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


def _read_nothing(port: int, run_id: str, count: int) -> None:
    opened = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        one.connect(("127.0.0.1", port))
        one.sendall(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        opened.append(one)
    print("open", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _read_nothing(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
