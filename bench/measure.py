"""Times contenders against one another in one process, so that a ratio between them means something.

Three rules make the ratios repeatable on a shared machine. The contenders take turns, one short batch each per round,
in an order that changes every round: a slow moment hits all of them alike. Of all rounds the minimum counts: noise only
ever adds time. And the collector stands still during a batch, with everything older than the measurement out of its
sight; what a batch left behind is collected before the next one begins.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import random
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_now = time.perf_counter_ns

_BATCH = """\
async def batch(_count, {parameters}):
    _start = _now()
    for _ in _repeat(None, _count):
{statement}
    return _now() - _start
"""

Batch = Callable[[], Awaitable[int]]
Drive = Callable[[asyncio.Runner, Batch], int]


def in_asyncio(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch in an asyncio task of its own."""
    return runner.run(batch())


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A statement to time.

    ``names`` makes what the statement uses; a ModuleNotFoundError there means that this peer is not installed.
    ``drive`` puts the place around a batch in which the statement is at home: a run, a cancel scope, a trio loop.
    """

    name: str
    statement: str
    names: Callable[[], Mapping[str, object]] = dict
    drive: Drive = in_asyncio


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An act that can be done once to its subject, such as a stop; every round builds a fresh subject."""

    name: str
    build: Callable[[], Any]
    act: Callable[[Any], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure; more rounds find a quieter minimum."""

    rounds: int
    batch_ns: int = 1_000_000  # short enough to fit between two interruptions, long against the clock's own 50 ns


def load(module: str) -> Any:
    """Import a peer; raises ModuleNotFoundError if it is not installed."""
    return importlib.import_module(module)


@contextmanager
def collector_held() -> Iterator[None]:
    """Keep the collector from running by itself, and everything that exists now out of its sight."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
        gc.collect()


class _Timed:
    """A contender with its compiled batch and the best time so far."""

    def __init__(self, contender: Contender, runner: asyncio.Runner) -> None:
        self._drive = contender.drive
        self._runner = runner
        self._batch = _compile(contender.statement, contender.names())
        self._count = 1
        self.best = float("inf")

    def execute(self, count: int) -> int:
        return self._drive(self._runner, lambda: self._batch(count))

    def calibrate(self, batch_ns: int) -> None:
        """Find how many repetitions fill a batch; this also lets the interpreter specialize the code."""
        # The best of a few: one interruption would pass for a slow statement, and make a batch so short that the
        # clock's own time shows in it.
        while (spent := min(self.execute(self._count) for _ in range(5))) < batch_ns / 2:
            self._count *= 2
        self._count = max(1, round(self._count * batch_ns / spent))

    def turn(self) -> None:
        self.best = min(self.best, self.execute(self._count) / self._count)


def _compile(statement: str, names: Mapping[str, object]) -> Callable[[int], Awaitable[int]]:
    """Make a batch whose names are locals, for everybody alike: a lookup in a module is nobody's cost."""
    source = _BATCH.format(
        parameters=", ".join(f"{name}={name}" for name in ("_now", "_repeat", *names)),
        statement=textwrap.indent(statement, " " * 8),
    )
    namespace: dict[str, Any] = {"_now": _now, "_repeat": itertools.repeat, **names}
    exec(compile(source, "<batch>", "exec"), namespace)
    return namespace["batch"]


def measure(contenders: Sequence[Contender], effort: Effort) -> dict[str, float | None]:
    """Return the nanoseconds of one statement by name, without the loop around it; None for what is not installed."""
    with asyncio.Runner() as runner:
        empty = _Timed(Contender(name="", statement="pass"), runner)
        timed = {contender.name: _prepare(contender, runner) for contender in contenders}
        here = [empty, *(one for one in timed.values() if one is not None)]
        order = random.Random(0)
        for one in here:
            one.calibrate(effort.batch_ns)
        with collector_held():
            for _ in range(effort.rounds):
                order.shuffle(here)
                for one in here:
                    one.turn()
                    gc.collect()
    return {name: None if one is None else one.best - empty.best for name, one in timed.items()}


def _prepare(contender: Contender, runner: asyncio.Runner) -> _Timed | None:
    try:
        return _Timed(contender, runner)
    except ModuleNotFoundError:
        return None


def measure_once(jobs: Sequence[Job], effort: Effort) -> dict[str, float]:
    """Return the nanoseconds of one act by name; building its subject is not timed."""
    best = dict.fromkeys((job.name for job in jobs), float("inf"))
    order = random.Random(0)
    turns = list(jobs)
    with collector_held():
        for _ in range(effort.rounds):
            order.shuffle(turns)
            for job in turns:
                subject = job.build()
                start = _now()
                job.act(subject)
                best[job.name] = min(best[job.name], _now() - start)
                del subject
                gc.collect()
    return best


def garbage(contender: Contender, count: int = 1000) -> float | None:
    """Return how many objects one statement leaves to the cycle collector, whose work no timing here includes."""
    with asyncio.Runner() as runner:
        timed = _prepare(contender, runner)
        if timed is None:
            return None
        timed.execute(count)
        with collector_held():
            timed.execute(0)
            around = gc.collect()  # what the place around the batch leaves, however often the statement is repeated
            timed.execute(count)
            return (gc.collect() - around) / count
