"""Measures the supervisor and its stores: acknowledged operations, the way from a stop to the halt, bytes and starts.

Floors are measured in the same run: bare sqlite3 with one transaction per operation, a bare event wake, a bare commit
with a datagram, a bare task. A full run writes bench/results/supervisor.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sqlite3
import statistics
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import least
import stoppable
from across import across
from machine import facts
from scratch import folder
from stoppable import Supervisor
from stoppable.records import Draft, EventType, Filter, RunRecord
from stoppable.stores.base import Store, WorkerInfo
from stoppable.stores.memory import MemoryStore
from stoppable.stores.sqlite import SqliteStore
from table import Row, Section, Target, against, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "supervisor.md"
METHOD = "Written by `make bench`. Medians of interleaved rounds; every floor is measured in the same run."
CALLERS = (1, 100, 1000)


# Acknowledged operations


def operations(quick: bool) -> Section:
    seconds = 0.3 if quick else 1.0
    rounds = 2 if quick else 5
    rows: list[Row] = []
    for synchronous in ("full", "normal"):
        bare = statistics.median(_bare_us(synchronous, seconds) for _ in range(rounds))
        rows.append(against(bare, f"sqlite3, a transaction each, {synchronous} (floor)", bare, unit="µs"))
        for callers in CALLERS:
            ours = statistics.median(asyncio.run(_ours_us(synchronous, callers, seconds)) for _ in range(rounds))
            target = Target(limit=0.25) if (synchronous, callers) == ("full", 100) else None
            rows.append(against(bare, f"{callers} callers, {synchronous}", ours, target=target, unit="µs"))
    notes = ["One operation is one event appended to a run's log, and acknowledged when it is on disk."]
    return Section(title="Acknowledged operations of the store in a file", rows=rows, notes=notes)


def _bare_us(synchronous: str, seconds: float) -> float:
    connection = sqlite3.connect(folder() / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=wal")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, epoch INTEGER, seq INTEGER)")
    connection.execute(
        "CREATE TABLE events (run TEXT, seq INTEGER, at REAL, type TEXT, data TEXT, PRIMARY KEY (run, seq))"
    )
    connection.execute("INSERT INTO runs VALUES ('a', 1, 0)")
    count, end, began = 0, time.perf_counter() + seconds, time.perf_counter()
    while time.perf_counter() < end:
        connection.execute("BEGIN IMMEDIATE")
        [(seq,)] = connection.execute(
            "UPDATE runs SET seq = seq + 1 WHERE id = 'a' AND epoch = 1 RETURNING seq"
        ).fetchall()
        connection.execute(
            "INSERT INTO events VALUES ('a', ?, ?, 'progress', ?)", (seq, time.time(), json.dumps({"step": count}))
        )
        connection.execute("COMMIT")
        count += 1
    taken = time.perf_counter() - began
    connection.close()
    return taken / count * 1e6


async def _ours_us(synchronous: str, callers: int, seconds: float) -> float:
    store = SqliteStore(folder() / "runs.db", synchronous=synchronous, events_kept=10_000_000)
    store.open()
    await store.open_worker(WorkerInfo(id="w"), 60)
    for number in range(callers):
        await store.register(RunRecord(id=str(number), name="x", worker="w"), "x")
    count, end, began = 0, time.perf_counter() + seconds, time.perf_counter()

    async def call(run: str) -> None:
        nonlocal count
        step = 0
        while time.perf_counter() < end:
            await store.append(run, 1, [Draft(type=EventType.PROGRESS, data={"step": step}, at=time.time())])
            step += 1
            count += 1

    await asyncio.gather(*(call(str(number)) for number in range(callers)))
    taken = time.perf_counter() - began
    store.close()
    return taken / count * 1e6


# From the stop to the halt


Stops = Callable[[Callable[[], Awaitable[object]]], Awaitable[float]]


def halts(quick: bool) -> Section:
    return _halts("the stop is called on the agents' own loop", _here, quick)


def halts_from_elsewhere(quick: bool) -> Section:
    return _halts("the stop is called on another thread, as a server does", _elsewhere, quick)


def _halts(where: str, stops: Stops, quick: bool) -> Section:
    rows: list[Row] = []
    for count in (1, 1000, 10_000):
        rounds = 3 if quick or count == 10_000 else 20 if count == 1000 else 200
        bare = asyncio.run(_median_ms(lambda count=count: _bare_wake(count, stops), rounds))
        fewest = asyncio.run(_median_ms(lambda count=count: least.halt(count, _Bodies(count), stops), rounds))
        more = asyncio.run(
            _median_ms(lambda count=count: least.halt(count, _Bodies(count), stops, is_bare=False), rounds)
        )
        plain = asyncio.run(_median_ms(lambda count=count: _plain_halt(count, stops), rounds))
        ours = asyncio.run(_supervised(MemoryStore, lambda one, count=count: _halt(one, count, stops), rounds))
        kept = asyncio.run(_supervised(_file, lambda one, count=count: _halt(one, count, stops), max(3, rounds // 10)))
        rows += [
            against(more, f"{count:,} tasks: an event each, found by its id and set", bare, unit="ms"),
            against(more, f"{count:,} records with an edge each", fewest, unit="ms"),
            against(more, f"{count:,} of them that sleep, each with a stop of its own (floor)", more, unit="ms"),
            against(more, f"{count:,} spawned runs without a store: stop → halt", plain, unit="ms"),
            against(more, f"{count:,} runs: stop → halt, memory", ours, target=Target(limit=10), unit="ms"),
            against(more, f"{count:,} runs: stop → halt, in a file", kept, unit="ms"),
        ]
    notes = [
        "From the call of stop until the last body has left its wait.",
        (
            "The first row is the dict + asyncio.Event pattern: each task waits for an event of its own, because one "
            "event for all could not stop one alone. From another thread all are set by one call_soon_threadsafe."
        ),
        (
            "A stopped run passes its edge in the step in which its body halts, which a bare task does not have: all "
            "of them but one are in the figure. Spawned runs show that part without a store, each stopped on its own."
        ),
        (
            "The floor is the least a stop can be, written by hand in the benchmark: a record found by its id is marked"
            " with a reason and an object for the stop, its future is woken, an exception is raised in the body, which"
            " cancels the timer of its sleep, and is caught at an edge around it, which writes a terminal status and"
            " looks for waiters. It has no tree, boundaries, hooks or locks, so it works in one thread only; no ladder,"
            " so a body that does not listen is never ended; no receipt, and no store. The row above it has neither the"
            " timer nor the object."
        ),
    ]
    return Section(title=f"Stop → halt in one process: {where}", rows=rows, notes=notes)


async def _here(stop: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await stop()
    return began


async def _elsewhere(stop: Callable[[], Awaitable[object]]) -> float:
    """Call a stop on a loop that another thread runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_here(stop), loop))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


async def _median_ms(once: Callable[[], Awaitable[float]], rounds: int) -> float:
    await once()
    found = []
    for _ in range(rounds):
        gc.collect()
        found.append(await once())
    return statistics.median(found) * 1e3


async def _supervised(make: Callable[[], Store], once: Callable[[Supervisor], Awaitable[float]], rounds: int) -> float:
    async with Supervisor(make()) as supervisor:
        return await _median_ms(lambda: once(supervisor), rounds)


def _file() -> Store:
    return SqliteStore(folder() / "runs.db")


class _Bodies:
    """Counts bodies that halt; the last one notes the time."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def __call__(self, wait: Callable[[], Awaitable[object]]) -> None:
        try:
            await wait()
        finally:
            self._left -= 1
            if not self._left:
                self.ended.set_result(time.perf_counter())


async def _bare_wake(count: int, stops: Stops) -> float:
    loop, bodies = asyncio.get_running_loop(), _Bodies(count)
    events = {str(number): asyncio.Event() for number in range(count)}
    tasks = [asyncio.create_task(bodies(event.wait)) for event in events.values()]
    await asyncio.sleep(0)

    def set_all() -> None:
        for run_id in list(events):
            events[run_id].set()

    async def stop() -> None:
        if asyncio.get_running_loop() is loop:
            set_all()
        else:
            loop.call_soon_threadsafe(set_all)

    began = await stops(stop)
    ended = await bodies.ended
    await asyncio.gather(*tasks)
    return ended - began


async def _plain_halt(count: int, stops: Stops) -> float:
    bodies = _Bodies(count)
    handles = [await stoppable.spawn(bodies, _sleep) for _ in range(count)]
    while any(handle.status == "pending" for handle in handles):
        await asyncio.sleep(0.001)

    async def stop() -> None:
        for handle in handles:
            handle.run.stop()

    began = await stops(stop)
    ended = await bodies.ended
    for handle in handles:
        await handle.outcome()
    return ended - began


async def _halt(supervisor: Supervisor, count: int, stops: Stops) -> float:
    bodies = _Bodies(count)
    handles = await asyncio.gather(*(supervisor.start(bodies, _sleep) for _ in range(count)))
    while any([(await handle.record()).status == "pending" for handle in handles]):
        await asyncio.sleep(0.001)

    async def stop() -> None:
        await (supervisor.stop(handles[0].id) if count == 1 else supervisor.stop_where(all=True))

    began = await stops(stop)
    ended = await bodies.ended
    for handle in handles:
        await handle.outcome()
    return ended - began


async def _sleep() -> None:
    await stoppable.sleep(3600)


# Lists


def lists(quick: bool) -> Section:
    few, many = 100, 12_000 if quick else 120_000
    rounds = 20 if quick else 100
    found = {count: _list_us(count, few, rounds) for count in (few, many)}
    floor = found[few]
    rows = [
        against(floor, f"all {few} runs of a file, by their label (floor)", floor, unit="µs"),
        against(floor, f"the {few} of {many:,}", found[many], unit="µs", target=Target(limit=2)),
    ]
    notes = ["A list of 100 summaries by a label that 100 runs have, evenly spread; the median, as the store answers."]
    return Section(title="A list by a label, in a file", rows=rows, notes=notes)


def _list_us(count: int, few: int, rounds: int) -> float:
    store = SqliteStore(folder() / "runs.db", synchronous="normal")
    store.open()
    store.open_worker(WorkerInfo(id="w"), 600).result()
    replies = []
    for number in range(count):
        labels = {"team": "few" if number % (count // few) == 0 else "many", "env": "live"}
        record = RunRecord(id=f"{number}", name="agent", worker="w", labels=labels)
        replies.append(store.register(record, f"{number}"))
    for reply in replies:
        reply.result()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        page = store.query(Filter(labels={"team": "few"}), None, 100).result()
        times.append(time.perf_counter() - began)
        assert len(page.runs) == few, page
    store.close()
    return statistics.median(times) * 1e6


# Bytes, and whole lives


def sizes(quick: bool) -> Section:
    count = 2_000 if quick else 10_000
    rows = []
    for name, make, target in (
        ("memory: record and events included", MemoryStore, None),
        ("in a file", _file, Target(limit=4000, absolute=True)),
    ):
        found = asyncio.run(_bytes(make(), count))
        rows.append(Row(name=f"a live run, {name}", value=found, unit="B", target=target))
    return Section(title=f"Memory, at {count:,} live runs", rows=rows)


async def _bytes(store: Store, count: int) -> float:
    async def body() -> None:
        await stoppable.sleep(3600)

    async with Supervisor(store) as supervisor:
        await (await supervisor.start(asyncio.sleep, 0)).outcome()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        handles = [await supervisor.start(body) for _ in range(count)]
        while any(handle.status == "pending" for handle in handles):
            await asyncio.sleep(0.01)
        await supervisor.get(handles[-1].id)
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        await supervisor.stop_where(all=True, mode="immediate")
    return used / count


def lives(quick: bool) -> Section:
    count, rounds = (200, 3) if quick else (1000, 10)

    async def nothing() -> None:
        await asyncio.sleep(0)

    async def bare() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(asyncio.create_task(nothing()) for _ in range(count)))
        return (time.perf_counter() - began) / count * 1e3

    async def spawned() -> float:
        began = time.perf_counter()
        handles = [await stoppable.spawn(nothing) for _ in range(count)]
        await asyncio.gather(*(handle.result() for handle in handles))
        return (time.perf_counter() - began) / count * 1e3

    async def kept(supervisor: Supervisor) -> float:
        began = time.perf_counter()
        handles = await asyncio.gather(*(supervisor.start(nothing) for _ in range(count)))
        await asyncio.gather(*(handle.result() for handle in handles))
        return (time.perf_counter() - began) / count * 1e3

    def supervised(make: Callable[[], Store]) -> float:
        return asyncio.run(_supervised(make, kept, rounds))

    floor = asyncio.run(_median_ms(bare, rounds))
    rows = [
        against(floor, "create_task + await (floor)", floor, unit="µs"),
        against(floor, "spawn + result", asyncio.run(_median_ms(spawned, rounds)), unit="µs"),
        against(
            floor,
            "supervisor.start + result, memory",
            asyncio.run(_supervised(MemoryStore, kept, rounds)),
            unit="µs",
            target=Target(limit=12),
        ),
        against(
            floor,
            "supervisor.start + result, in a file, durable",
            asyncio.run(_supervised(_file, kept, rounds)),
            unit="µs",
        ),
    ]
    return Section(title=f"A run from start to finish, {count:,} at once", rows=rows)


SECTIONS = {
    "operations": operations,
    "halts": halts,
    "elsewhere": halts_from_elsewhere,
    "across": across,
    "lists": lists,
    "sizes": sizes,
    "lives": lives,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print machine-readable results")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    parser.add_argument("--only", choices=SECTIONS, help="one section; writes no results file")
    options = parser.parse_args()
    about = facts(("stoppable", "apsw"))
    sections = [part(options.quick) for name, part in SECTIONS.items() if options.only in {None, name}]
    last_line = summary("supervisor", sections)
    if options.json:
        print(json.dumps(as_json(about, sections, last_line), indent=2))
    else:
        print("\n".join(as_text(section) for section in sections) + f"\n\n{last_line}")
    if not options.quick and options.only is None:
        write(RESULTS, as_markdown("The supervisor and its stores, measured", METHOD, about, sections, last_line))


if __name__ == "__main__":
    main()
