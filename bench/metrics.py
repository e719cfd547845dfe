"""Measures what metrics cost of the CPU time of an event and of a run of a supervisor.

All that they add is in the calls of the store. That is less than two runs differ by themselves, so it is not their
difference, but the price of a call times the calls that an operation makes. A full run writes bench/results/metrics.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import stoppable
from machine import facts
from scratch import folder
from stoppable import Status, Supervisor
from stoppable.metrics import registry
from stoppable.records import OutcomeRecord, RunRecord, StopIntent
from stoppable.stores.base import Registration, StoreFuture
from stoppable.supervisor.meter import MeasuredStore, Meter
from table import Row, Section, Target, against, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "metrics.md"
METHOD = (
    "Written by `python bench/metrics.py`. CPU time of the process per operation, the best of some rounds; what metrics"
    " add to it is the price of a call of the store times the calls that the operation makes."
)
LIMIT = Target(limit=1.02)


async def talker(events: int) -> None:
    for n in range(events):
        stoppable.emit("step", n=n, text="a few words")
        if n % 10 == 0:
            await stoppable.sleep(0)


async def caller(boundaries: int) -> None:
    for _ in range(boundaries):
        async with stoppable.boundary("llm", "ask"):
            await asyncio.sleep(0)


async def nothing() -> None:
    pass


async def waiter() -> None:
    await stoppable.sleep(3600)


async def events(supervisor: Supervisor, count: int) -> None:
    for _ in range(count // 9_000):  # a log keeps 10 000
        await (await supervisor.start(talker, 9_000)).result()


async def boundaries(supervisor: Supervisor, count: int) -> None:
    for _ in range(count // 4_000):
        await (await supervisor.start(caller, 4_000)).result()


async def runs(supervisor: Supervisor, count: int) -> None:
    for _ in range(count):
        await (await supervisor.start(nothing)).result()


async def stops(supervisor: Supervisor, count: int) -> None:
    for _ in range(count):
        run = await supervisor.start(waiter)
        await supervisor.stop(run.id, wait=30)


Act = Callable[[Supervisor, int], Awaitable[None]]
ACTS: dict[str, tuple[Act, int]] = {
    "an event of `emit`": (events, 9_000),
    "a boundary, entered and left": (boundaries, 4_000),
    "a run that does nothing": (runs, 200),
    "a run that is stopped": (stops, 100),
}


async def cost(act: Act, count: int, store: str | None) -> tuple[float, dict[str, float]]:
    """Return the microseconds of CPU for each operation, and the calls of the store that it makes, by kind."""
    async with Supervisor(store) as supervisor:
        metrics = registry(supervisor, ["talker", "caller", "nothing", "waiter"])
        gc.collect()
        began = time.process_time()
        await act(supervisor, count)
        took = (time.process_time() - began) / count * 1e6
        samples = [sample for family in metrics.collect() for sample in family.samples]
        made = {
            sample.labels["operation"]: sample.value / count
            for sample in samples
            if sample.name == "stoppable_store_seconds_count"
        }
        return took, made


def measured(quick: bool) -> list[Section]:
    price = prices(quick)
    rows = [Row(name=f"`{name}`", value=value, unit="µs") for name, value in price.items()]
    notes = ["what is added to a call of the store, in memory; `get` stands for all that are not listed"]
    sections = [Section(title="One call", rows=rows, notes=notes)]
    print(as_text(sections[-1]), flush=True)
    for title, is_file in (("In memory", False), ("In a SQLite file", True)):
        rows = []
        for name, (act, count) in ACTS.items():
            least, added = float("inf"), 0.0
            for _ in range(2 if quick else 3):
                took, made = asyncio.run(cost(act, count, f"sqlite:///{folder()}/runs.db" if is_file else None))
                of_calls = sum(number * price.get(kind, price["get"]) for kind, number in made.items())
                if took < least:
                    least, added = took, of_calls
            rows.append(against(least - added, name, least - added, unit="µs"))
            rows.append(against(least - added, f"{name}, with metrics", least, unit="µs", target=LIMIT))
        notes = ["with the store's own work, in the same process; nobody reads the events"]
        sections.append(Section(title=title, rows=rows, notes=notes))
        print(as_text(sections[-1]), flush=True)
    sections.append(scrapes())
    print(as_text(sections[-1]), flush=True)
    return sections


class Settled:
    """A store that has answered at once, whatever it was asked."""

    def __init__(self) -> None:
        record = RunRecord(id="a", name="talker", status=Status.STOPPED, stop=StopIntent(), stop_requested_at=1.0)
        self._replies: dict[str, StoreFuture[Any]] = {
            "register": StoreFuture.of(lambda: Registration(record=RunRecord(id="a", name="talker"), created=True)),
            "finish": StoreFuture.of(lambda: record),
        }
        self._other: StoreFuture[Any] = StoreFuture.of(lambda: 1)

    def __getattr__(self, name: str) -> Callable[..., StoreFuture[Any]]:
        reply = self._replies.get(name, self._other)
        return lambda *_: reply


CALLS: dict[str, tuple[object, ...]] = {
    "append": ("a", 1, ()),
    "register": (None, ""),
    "finish": ("a", 1, OutcomeRecord(status=Status.STOPPED), None),
    "get": ("a",),
}


def prices(quick: bool) -> dict[str, float]:
    """Return the microseconds that are added to each kind of call; ``get`` stands for all others."""
    bare: Any = Settled()
    found = {}
    for name, arguments in CALLS.items():
        best = []
        for call in (getattr(bare, name), getattr(MeasuredStore(bare, Meter()), name)):
            took = float("inf")
            for _ in range(20 if quick else 300):
                began = time.perf_counter()
                for _ in range(1_000):
                    call(*arguments)
                took = min(took, (time.perf_counter() - began) * 1e3)
            best.append(took)
        found[name] = best[1] - best[0]
    return found


def scrapes() -> Section:
    """A scrape, of a process with many live runs."""

    async def scrape(live: int) -> float:
        async with Supervisor() as supervisor:
            metrics = registry(supervisor, ["waiter"])
            for _ in range(live):
                await supervisor.start(waiter)
            times = []
            for _ in range(5):
                began = time.process_time()
                for family in metrics.collect():
                    assert family.samples is not None
                times.append(time.process_time() - began)
            await supervisor.stop_where(all=True, mode="kill", wait=60)
            return min(times) * 1e3

    rows = [Row(name=f"{live:,} live runs", value=asyncio.run(scrape(live)), unit="ms") for live in ((0, 1_000))]
    return Section(title="One scrape", rows=rows, notes=["on a thread of its own, beside the event loop"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = facts(("stoppable", "prometheus-client", "apsw"))
    sections = measured(options.quick)
    last_line = summary("metrics", sections)
    print(json.dumps(as_json(known, sections, last_line)) if options.json else f"\n{last_line}")
    if not options.quick:
        write(RESULTS, as_markdown("Metrics, measured", METHOD, known, sections, last_line))


if __name__ == "__main__":
    main()
