"""What an idle run weighs: a hundred thousand of them wait, each contender in a process of its own."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stoppable
from machine import resident_bytes
from measure import load
from table import Row, Section, Target, against

COUNT = 100_000
QUICK_COUNT = 20_000
SCRIPT = Path(__file__).parents[1] / "core.py"
FLOOR = "bare task (floor)"
OURS = "spawned run, with its task and handle"
TARGET = Target(limit=2000, absolute=True)

Body = Callable[[], Awaitable[None]]
Start = Callable[[Body, list[object]], Awaitable[None]]


async def bare(body: Body, held: list[object]) -> None:
    """Start a task and nothing else."""
    held.append(asyncio.create_task(body()))


async def spawned(body: Body, held: list[object]) -> None:
    """Start a run."""
    held.append(await stoppable.spawn(body))


async def with_autogen_token(body: Body, held: list[object]) -> None:
    """Start a task with a token that can cancel it; unlinked, the token could not reach a task that waits."""
    token = load("autogen_core").CancellationToken()
    held.append(token.link_future(asyncio.create_task(body())))
    held.append(token)


async def with_event(body: Body, held: list[object]) -> None:
    """Start a task with a flag of its own; the flag cannot wake the task."""
    held.append(asyncio.create_task(body()))
    held.append(threading.Event())


CONTENDERS: dict[str, Start] = {
    FLOOR: bare,
    OURS: spawned,
    "bare task + AutoGen token linked to it": with_autogen_token,
    "bare task + threading.Event": with_event,
}


def measure_section(quick: bool) -> Section:
    """Weigh each contender twice: traced allocations and resident memory disturb one another."""
    count = QUICK_COUNT if quick else COUNT
    with ThreadPoolExecutor(max_workers=2) as pool:
        traced = dict(zip(CONTENDERS, pool.map(functools.partial(_in_child, count, True), CONTENDERS), strict=True))
        resident = dict(zip(CONTENDERS, pool.map(functools.partial(_in_child, count, False), CONTENDERS), strict=True))
    rows = _rows(traced, "allocated", TARGET) + _rows(resident, "resident", None)
    return Section(title=f"Memory per idle run, {count:,} of them", rows=rows)


def _rows(sizes: dict[str, float | None], what: str, target: Target | None) -> list[Row]:
    floor = sizes[FLOOR] or 0.0
    return [
        against(floor, f"{what}: {name}", size, target=target if name == OURS else None, unit="B")
        for name, size in sizes.items()
    ]


def _in_child(count: int, traced: bool, name: str) -> float | None:
    """Weigh one contender in a fresh process; None if it is not installed."""
    command = [sys.executable, str(SCRIPT), "--memory-child", name, "--count", str(count)]
    done = subprocess.run(
        [*command, "--traced"] if traced else command, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    return json.loads(done.stdout)


def report_as_child(name: str, count: int, *, traced: bool) -> None:
    """Weigh one contender and print the bytes of one; this is what the fresh process does."""
    try:
        asyncio.run(_weigh(CONTENDERS[name], count, traced=traced))
    except ModuleNotFoundError:
        print(json.dumps(None))


async def _weigh(start: Start, count: int, *, traced: bool) -> None:
    never = asyncio.get_running_loop().create_future()
    waiting = 0

    async def body() -> None:
        nonlocal waiting
        waiting += 1
        await never

    held: list[object] = []
    await start(body, held)  # what exists once per process is none of a run's weight
    await asyncio.sleep(0)
    gc.collect()
    if traced:
        tracemalloc.start()
    before = _size(traced)
    for _ in range(count):
        await start(body, held)
    while waiting <= count:
        await asyncio.sleep(0)
    gc.collect()
    print(json.dumps((_size(traced) - before) / count), flush=True)
    os._exit(0)  # a proper end would take each of the tasks out of the future's list of waiters, one by one


def _size(traced: bool) -> int:
    return tracemalloc.get_traced_memory()[0] if traced else resident_bytes()
