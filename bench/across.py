"""A stop from another process: how long until the body halts, against a commit and a datagram."""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import socket
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable

import stoppable
from scratch import folder
from stoppable import Supervisor
from stoppable.records import StopRequest
from stoppable.stores.sqlite import SqliteStore
from table import Section, Target, against

Send = Callable[[str], Callable[[], object]]
"""Stops a run, and returns what waits until that is durable."""


def across(quick: bool) -> Section:
    rounds = 20 if quick else 200
    bare, _ = _across(_bare_peer, _bare_stop, rounds)
    least, _ = _across(_least_peer, _least_stop, rounds)
    halted, durable = _across(_our_peer, _our_stop, rounds)
    rows = [
        against(least, "commit + datagram → answer", bare, unit="ms"),
        against(least, "the same with the rows of a stop and the threads that it passes (floor)", least, unit="ms"),
        against(least, "stop → the body halts → answer", halted, target=Target(limit=2), unit="ms"),
        against(least, "stop → halted and durable", durable, unit="ms"),
    ]
    notes = [
        "The first row commits on the calling thread, and a process that waits for nothing else answers.",
        (
            "The floor is the least that a stop can be which is on disk before it is heard: a run marked, an "
            "event and an audit entry, written by the one thread that writes; heard by a thread, read from the file; "
            "a task woken in a loop. Ours is heard while the disk is at work, and answered when that is done."
        ),
    ]
    return Section(title="A stop from another process", rows=rows, notes=notes)


def _across(peer: Callable[..., None], stop: Callable[[str], Send], rounds: int) -> tuple[float, float]:
    """Return the milliseconds until a body has said that it halts, and until the stop is durable as well."""
    path = folder()
    answers = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    answers.bind(str(path / "answers"))
    answers.settimeout(30)
    process = multiprocessing.get_context("spawn").Process(target=peer, args=(str(path), rounds))
    process.start()
    try:
        send = None
        halted, durable = [], []
        for _ in range(rounds):
            ready = answers.recv(100).decode()
            send = send or stop(str(path))
            time.sleep(0.002)
            began = time.perf_counter()
            wait = send(ready)
            answers.recv(100)
            halted.append((time.perf_counter() - began) * 1e3)
            wait()
            durable.append((time.perf_counter() - began) * 1e3)
        return statistics.median(halted), statistics.median(durable)
    finally:
        process.join(30)
        answers.close()


def _bare_peer(path: str, rounds: int) -> None:
    answers = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(path + "/inbox")
    for number in range(rounds):
        answers.sendto(str(number).encode(), path + "/answers")
        inbox.recv(100)
        answers.sendto(b"halted", path + "/answers")


def _bare_stop(path: str) -> Send:
    connection = sqlite3.connect(path + "/bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute("PRAGMA synchronous=full")
    connection.execute("CREATE TABLE stops (run TEXT, level INTEGER)")
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def send(run: str) -> Callable[[], object]:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO stops VALUES (?, 1)", (run,))
        connection.execute("COMMIT")
        sender.sendto(b"stop", path + "/inbox")
        return lambda: None

    return send


def _least_peer(path: str, rounds: int) -> None:
    answers = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    inbox.bind(path + "/inbox")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        bell: asyncio.Future[None] = loop.create_future()

        def listen() -> None:
            connection = None
            for _ in range(rounds):
                inbox.recv(100)
                connection = connection or sqlite3.connect(path + "/least.db", isolation_level=None)
                connection.execute("SELECT id, mode FROM runs WHERE mode > 0 AND worker = 'w'").fetchall()
                loop.call_soon_threadsafe(bell.set_result, None)

        thread = threading.Thread(target=listen)
        thread.start()
        for number in range(rounds):
            answers.sendto(str(number).encode(), path + "/answers")
            await bell
            answers.sendto(b"halted", path + "/answers")
            bell = loop.create_future()
        thread.join()

    asyncio.run(main())


def _least_stop(path: str) -> Send:
    asked: queue.SimpleQueue[tuple[str, threading.Event]] = queue.SimpleQueue()
    ready = threading.Event()

    def write() -> None:
        connection = sqlite3.connect(path + "/least.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode=wal")
        connection.execute("PRAGMA synchronous=full")
        connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, worker TEXT, status TEXT, mode INTEGER)")
        connection.execute("CREATE TABLE events (run TEXT, seq INTEGER, type TEXT, data TEXT, PRIMARY KEY (run, seq))")
        connection.execute("CREATE TABLE audit (at REAL, entry TEXT)")
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready.set()
        while True:
            run, done = asked.get()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE runs SET mode = 0 WHERE mode > 0")
            connection.execute("INSERT INTO runs VALUES (?, 'w', 'stopping', 1)", (run,))
            connection.execute("INSERT INTO events VALUES (?, 1, 'status', '{}')", (run,))
            connection.execute("INSERT INTO audit VALUES (?, '{}')", (time.time(),))
            connection.execute("COMMIT")
            sender.sendto(b"stop", path + "/inbox")
            done.set()

    threading.Thread(target=write, daemon=True).start()
    ready.wait()

    def send(run: str) -> Callable[[], object]:
        done = threading.Event()
        asked.put((run, done))
        return done.wait

    return send


def _our_peer(path: str, rounds: int) -> None:
    answers = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    async def body() -> None:
        try:
            await stoppable.sleep(3600)
        finally:
            answers.sendto(b"halted", path + "/answers")

    async def main() -> None:
        async with Supervisor(SqliteStore(path + "/runs.db")) as supervisor:
            for _ in range(rounds):
                handle = await supervisor.start(body)
                while handle.status == "pending" or (await handle.record()).status == "pending":
                    await asyncio.sleep(0.001)
                answers.sendto(handle.id.encode(), path + "/answers")
                await handle.outcome()

    asyncio.run(main())


def _our_stop(path: str) -> Send:
    store = SqliteStore(path + "/runs.db")
    store.open()
    return lambda run: store.request_stop(StopRequest(target=run)).result
