"""Many runs that talk at once, as models do: 50 runs with 50 tokens a second and one reader each."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from contextlib import ExitStack
from statistics import quantiles

from connection import Connection, usage
from servers import ours, server
from table import Row, Section, Target, against
from workloads import Floor, Stoppable

RUNS = 50
PER_SECOND = 50
START_SECONDS = 1.0
FLOOR = "a StreamingResponse each, no run (floor)"
NOTES = [
    f"CPU time of the server for each event of {RUNS} runs with {PER_SECOND} events a second and one reader each",
    "with the ends of the runs and without their starts; 400 µs would fill a core",
    "the server has one core; delay: from the agent's call until the client has read it, of 99 in 100 events",
]

_AT = re.compile(rb'"at":([0-9.]+),"type":"progress"')


async def tokens(quick: bool) -> Section:
    """Measure a server with many runs that talk."""
    count, rounds = PER_SECOND * (2 if quick else 4), 2 if quick else 6
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        contenders: dict[str, tuple[Floor | Stoppable, int]] = {
            name: (workload, stack.enter_context(server(ours(*options, "one-core"))))
            for name, workload, options in (
                (FLOOR, Floor(), ("memory", "plain")),
                ("stoppable, in memory", Stoppable(), ("memory",)),
                ("stoppable, in a SQLite file", Stoppable(), (f"sqlite:///{folder}/runs.db",)),
            )
        }
        every: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, (workload, port) in contenders.items():
                every[name].append(await _talked(workload, port, count))
        # Not the best: a server that falls behind sends many events in one piece, which is cheap.
        found = {name: sorted(taken)[len(taken) // 2] for name, taken in every.items()}
    floor = found[FLOOR][0]
    rows = [
        against(floor, name, cost, unit="µs", target=None if name == FLOOR else Target(limit=1.6))
        for name, (cost, _) in found.items()
    ]
    rows += [Row(name=f"{name}: delay", value=delay, unit="ms") for name, (_, delay) in found.items()]
    return Section(title="Many runs that talk", rows=rows, notes=NOTES)


async def _talked(workload: Floor | Stoppable, port: int, count: int) -> tuple[float, float]:
    """Return the microseconds of CPU for an event, and the delay of most of them in milliseconds."""
    readers = [await Connection.open(port) for _ in range(RUNS)]
    at = time.time() + START_SECONDS
    reading = asyncio.gather(*(_read(workload, reader, count, at) for reader in readers))
    await asyncio.sleep(at - 0.1 - time.time())
    before, _ = await usage(port)
    delays = [delay for found in await reading for delay in found]
    after, _ = await usage(port)
    for reader in readers:
        reader.close()
    assert len(delays) == RUNS * count, "every event was read"
    return (after - before) / len(delays) / 1000, quantiles(delays, n=100)[98]


async def _read(workload: Floor | Stoppable, reader: Connection, count: int, at: float) -> list[float]:
    """Return the milliseconds that each event of one run took."""
    delays: list[float] = []
    async for chunk in workload.spoken(reader, count, at):
        now = time.time()
        delays += [(now - float(told)) * 1000 for told in _AT.findall(chunk)]
    return delays
