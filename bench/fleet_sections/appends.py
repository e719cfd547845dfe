"""Events that a hundred callers append at once, against one transaction for each."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any
from unittest import mock

from tests.fleet.postgres_server import PostgresServer

from scratch import folder
from stoppable.records import Draft, EventType, RunRecord
from stoppable.stores.base import Store, WorkerInfo
from stoppable.stores.postgres import from_url, pg_engine
from stoppable.stores.sql.sql_engine import BatchThread
from table import Section, Target, against

CALLERS = 100


class _OneByOne(BatchThread[Any]):
    """Takes one call at a time, so that no two appends share a transaction."""

    def __init__(self, name: str, work: Any) -> None:
        super().__init__(name, work, most=1)


def measure_section(server: PostgresServer, quick: bool) -> Section:
    seconds, turns = (0.5, 1) if quick else (2.0, 3)
    url = f"{server.url}?schema=appends&locks={folder()}"
    with mock.patch.object(pg_engine, "BatchThread", _OneByOne):
        alone = from_url(url)
        alone.open()
    together = from_url(url)
    together.open()
    found: dict[str, list[float]] = {"alone": [], "one": [], "together": []}
    for turn in range(turns):
        found["alone"].append(_appends(alone, f"alone {turn}", CALLERS, seconds))
        found["one"].append(_appends(together, f"one {turn}", 1, seconds))
        found["together"].append(_appends(together, f"together {turn}", CALLERS, seconds))
    alone.close()
    together.close()
    floor, one, ours = (statistics.median(values) for values in found.values())
    rows = [
        against(floor, f"{CALLERS} callers, one transaction each (floor)", floor, unit="µs"),
        against(floor, f"{CALLERS} callers", ours, target=Target(limit=1 / 8), unit="µs"),
        against(floor, "one caller", one, unit="µs"),
    ]
    notes = [
        f"Appends a second: {1e6 / ours:,.0f} against {1e6 / floor:,.0f}, and {1e6 / one:,.0f} of one caller.",
        "The floor is the same store, with only one append in each transaction.",
    ]
    return Section(title="Appends", rows=rows, notes=notes)


def _appends(store: Store, name: str, callers: int, seconds: float) -> float:
    """Return the microseconds of each append."""
    store.open_worker(WorkerInfo(id=name), 3600).result(30)
    runs = [f"{name} {number}" for number in range(callers)]
    for future in [store.register(RunRecord(id=run, name="agent", worker=name), run) for run in runs]:
        future.result(30)
    event = [Draft(type=EventType.PROGRESS, data={"name": "token", "data": {"text": "word"}})]
    count = 0

    async def call(run: str, until: float) -> None:
        nonlocal count
        while time.monotonic() < until:
            await store.append(run, 1, event)
            count += 1

    async def main() -> float:
        began = time.monotonic()
        await asyncio.gather(*(call(run, began + seconds) for run in runs))
        return time.monotonic() - began

    return asyncio.run(main()) / count * 1e6
