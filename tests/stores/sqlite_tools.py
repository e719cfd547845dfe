"""Processes that share a file with the test, and short ways to ask for what the tests of it need."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from stoppable._core.values import Status
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord
from stoppable.stores.base import Subscription, WorkerInfo
from stoppable.stores.sqlite import SqliteStore

PRELUDE = """
import os, sys, subprocess, threading
from stoppable._core.values import Mode, Status
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, Selector, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.sqlite import SqliteStore

def say(*words):
    print(*words, flush=True)

def told():
    return sys.stdin.readline().strip()

store = SqliteStore(sys.argv[1], synchronous="normal")
store.open()
"""


def listens(store: SqliteStore, worker: str) -> tuple[threading.Event, Subscription]:
    """Return what tells that a worker was hinted at, once the look that every new listener gets is over."""
    looked, heard = threading.Event(), threading.Event()
    first = store.hints(worker, lambda _: looked.set())
    assert looked.wait(60)
    first.close()
    return heard, store.hints(worker, lambda _: heard.set())


class Gate:
    """Keeps the writer of a store busy, so that calls have to wait for each other, and are made together then."""

    def __init__(self, store: SqliteStore) -> None:
        self._is_busy, self._may_go_on = threading.Event(), threading.Event()
        self._reply = store._write(self._stay)
        assert self._is_busy.wait(60)

    def _stay(self, _: object) -> bool:
        self._is_busy.set()
        return self._may_go_on.wait(60)

    def release(self) -> None:
        """Let the calls be made."""
        self._may_go_on.set()

    def open(self) -> None:
        """Let the calls be made, now that all of them wait."""
        self.release()
        assert self._reply.result(10)


class Script:
    """A Python process that talks in lines."""

    def __init__(self, code: str, path: Path, *, prelude: str = PRELUDE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", prelude + code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )

    def hears(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def says(self, word: str = "go") -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        print(word, file=self.process.stdin, flush=True)

    def kill(self) -> None:
        """End it as the kernel does."""
        self.process.kill()
        self.process.wait(60)

    def ends(self) -> int:
        """Wait for its end."""
        return self.process.wait(15)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def started(store: SqliteStore, run_id: str = "a", worker: str = "w", ttl: float = 30.0) -> RunRecord:
    """Open a worker and let a run of it begin."""
    store.open_worker(WorkerInfo(id=worker), ttl).result(10)
    record = store.register(RunRecord(id=run_id, name="agent", worker=worker), "r").result(10).record
    store.append(run_id, 1, [Draft(type=EventType.STATUS, data={"status": "running"})]).result(10)
    return record


def progress(**data: object) -> list[Draft]:
    return [Draft(type=EventType.PROGRESS, data=data)]


def done(result: object = None) -> OutcomeRecord:
    return OutcomeRecord(status=Status.COMPLETED, result=result)


def reaped(store: SqliteStore, *, expired: bool = False) -> dict[str, str]:
    """Reap, and return what became of whom."""
    return {record.id: record.status.value for record in store.reap(expired=expired).result(10)}
