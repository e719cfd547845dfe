"""Measures the server: CPU time per operation and memory per stream, beside floors and beside peers.

What counts is the CPU time of the server's process. Contenders take turns and the best of the rounds counts. A full
run writes bench/results/server.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from connection import Connection, usage
from machine import facts
from servers import WORKLOADS, Act, interleaved, is_installed, ours, peers, server
from table import Row, Section, Target, against, as_json, as_markdown, as_text, summary, write
from tokens import tokens
from unread import unread
from workloads import A2a, Adk, Floor, Stoppable, Workload, raw

RESULTS = Path(__file__).parent / "results" / "server.md"
METHOD = "Written by `make bench`. CPU time of the server's process per operation: the best of interleaved rounds."
PACKAGES = ("stoppable", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "orjson", "apsw")
PEERS_NOTE = (
    "peers: their own servers under the same uvicorn, agents without a model, in memory, tracing off;"
    " an event of google-adk is partial, as a token is, and not kept"
)
STOP = "POST /runs/{id}/stop"
STOP_NOTES = [
    "cooperative, of a run that does not listen: the stop alone; the last row is of one that does, with its end",
    "the write to the store is Store.request_stop, called by the floor as by our route",
    "a first stop has the answer of the run's worker in it, which lives in the same process",
]


async def replay(quick: bool) -> Section:
    with server(ours("memory")) as port:
        control = await Connection.open(port)
        run_id = await Stoppable().started(control, "talker", 2_000 if quick else 9_000)
        told = await (await Connection.open(port)).ask("GET", f"/runs/{run_id}/events")  # to its end, and once
        replayed = told.count(b"\n\n")

        async def read(path: str) -> int:
            for _ in range(5):
                await control.ask("GET", path)
            return 5 * replayed

        contenders = {
            "floor": (port, lambda: read(f"/floor/events?count={replayed}")),
            "ours": (port, lambda: read(f"/runs/{run_id}/events")),
        }
        found = await interleaved(3 if quick else 15, contenders)
        control.close()
    rows = [
        against(found["floor"], "a drained StreamingResponse with orjson (floor)", found["floor"], unit="µs"),
        against(found["floor"], "GET /runs/{id}/events", found["ours"], unit="µs", target=Target(limit=2)),
    ]
    return Section(title="One event to one reader", rows=rows, notes=[f"{replayed:,} events, replayed"])


async def live(quick: bool) -> Section:
    count = 100 if quick else 500

    async def followed(workload: Workload, port: int) -> int:
        stream = await Connection.open(port)
        await workload.events(stream, count)
        stream.close()
        return count

    with ExitStack() as stack:
        contenders: dict[str, tuple[int, Act]] = {}
        for workload, command in WORKLOADS.items():
            if not is_installed(command):
                continue
            port = stack.enter_context(server(command))
            await followed(workload, port)  # for what is made once
            contenders[workload.name] = (port, partial(followed, workload, port))
        found = await interleaved(2 if quick else 5, contenders)
    floor = found[Floor.name]
    limit = Target(limit=1.6)
    rows = [
        against(
            floor,
            workload.name,
            found.get(workload.name),
            unit="µs",
            target=limit if isinstance(workload, Stoppable) else None,
        )
        for workload in WORKLOADS
    ]
    told = f"{count} events, one each millisecond, with the start of the run: from the agent to one reader"
    return Section(title="One event of a live run", rows=rows, notes=[told, PEERS_NOTE])


async def pages(quick: bool) -> Section:
    """The same run, followed by many readers, or with as many pages open that show all runs."""
    count, many = (100, 10) if quick else (500, 50)
    with server(ours("memory")) as port:

        async def followed() -> int:
            control = await Connection.open(port)
            run_id = await Stoppable().started(control, "pacer", count)
            readers = [await Connection.open(port) for _ in range(many)]
            await asyncio.gather(*(reader.ask("GET", f"/runs/{run_id}/events") for reader in readers))
            for connection in (control, *readers):
                connection.close()
            return count

        async def shown() -> int:
            control = await Connection.open(port)
            shown = [await Connection.open(port) for _ in range(many)]
            for page in shown:
                await Stoppable().page(page)
            run_id = await Stoppable().started(control, "pacer", count)
            ended = f'"id":"{run_id}"'.encode()
            await asyncio.gather(*(page.until(ended, b'"completed"') for page in shown))
            for connection in (control, *shown):
                connection.close()
            return count

        await followed()
        await shown()
        found = await interleaved(2 if quick else 5, {"readers": (port, followed), "pages": (port, shown)})
    readers = found["readers"]
    rows = [
        against(readers, f"{many} readers of its events (floor)", readers, unit="µs"),
        against(readers, f"{many} pages with GET /events", found["pages"], unit="µs", target=Target(limit=1)),
    ]
    told = f"CPU time for each of {count} events of one run, one each millisecond, with its start and the streams' own"
    return Section(title="Pages that are open", rows=rows, notes=[told])


async def stops_in_memory(quick: bool) -> Section:
    return Section(title="One stop, in memory", rows=await stops(quick, "memory"), notes=STOP_NOTES)


async def stops_in_a_file(quick: bool) -> Section:
    with tempfile.TemporaryDirectory() as folder:
        rows = await stops(quick, f"sqlite:///{folder}/runs.db")
    bare = "a bare transaction: one INSERT in the handler itself, WAL, synchronous FULL, nobody else in the file"
    return Section(title="One stop, in a SQLite file", rows=rows, notes=[*STOP_NOTES, bare])


async def stops(quick: bool, store: str) -> list[Row]:
    count, rounds = 50, 5 if quick else 40
    paths = {"floor": "/floor/{}/stop", "ours": "/runs/{}/stop"}
    with server(ours(store)) as port:
        control = await Connection.open(port)
        stopped = await Stoppable().started(control, "deaf")

        async def again(path: str) -> int:
            for _ in range(count):
                await control.ask("POST", path.format(stopped), Stoppable.STOP)
            return count

        more = {} if store == "memory" else {"bare": "/floor/{}/transaction"}
        acts = {name: (port, partial(again, path)) for name, path in (paths | more).items()}
        await again(paths["ours"])
        found = await interleaved(rounds, acts)
        first = await first_stops(port, rounds // 2, count, "deaf", paths)
        ended = await first_stops(port, rounds // 2, count, "waiter", {"ours": paths["ours"]})
        control.close()
    return [
        against(
            found["floor"], "a FastAPI POST with models and the write to the store (floor)", found["floor"], unit="µs"
        ),
        *(
            against(found["floor"], "a FastAPI POST with models and one bare transaction", found[name], unit="µs")
            for name in more
        ),
        against(found["floor"], f"{STOP}, repeated", found["ours"], unit="µs", target=Target(limit=1.5)),
        against(first["floor"], "the same POST, the first stop of a live run (floor)", first["floor"], unit="µs"),
        against(first["floor"], f"{STOP}, the first of a live run", first["ours"], unit="µs", target=Target(limit=1.5)),
        Row(name=f"{STOP}, the first, with the end of the run", value=ended["ours"], unit="µs"),
    ]


async def first_stops(port: int, rounds: int, count: int, agent: str, paths: Mapping[str, str]) -> dict[str, float]:
    """Return the best microseconds of CPU per stop of runs that nobody has stopped before."""
    control = await Connection.open(port)

    async def stop(path: str, runs: list[str]) -> int:
        for run_id in runs:
            await control.ask("POST", path.format(run_id), Stoppable.STOP)
        return len(runs)

    best = dict.fromkeys(paths, float("inf"))
    for _ in range(rounds):
        for name, path in paths.items():
            runs = [await Stoppable().started(control, agent) for _ in range(count)]
            for run_id in runs:
                await begun(control, run_id)
            found = await interleaved(1, {name: (port, partial(stop, path, runs))})
            best[name] = min(best[name], found[name])
    return best


async def begun(control: Connection, run_id: str) -> None:
    while json.loads(await control.ask("GET", f"/runs/{run_id}"))["status"] != "running":
        pass


async def peer_stops(quick: bool) -> Section:
    count, rounds = (20, 2) if quick else (100, 5)
    rows = []
    for workload, command in WORKLOADS.items():
        if isinstance(workload, Adk):
            rows.append(Row(name=workload.name, note="none: all a client can do is drop its connection"))
        elif not is_installed(command):
            rows.append(Row(name=workload.name, note="not installed"))
        elif not isinstance(workload, Floor):
            with server(command) as port:
                rows.append(
                    Row(name=workload.name, value=await followed_stops(workload, port, rounds, count), unit="µs")
                )
    notes = ["a run that waits and is followed by one reader, with its end, in memory", PEERS_NOTE]
    return Section(title="One stop of a followed run, beside the peers", rows=rows, notes=notes)


async def followed_stops(workload: Workload, port: int, rounds: int, count: int) -> float:
    control = await Connection.open(port)
    best = float("inf")
    for _ in range(rounds):
        streams = [await Connection.open(port) for _ in range(count)]
        runs = [await workload.waiting(stream) for stream in streams]

        async def stop(runs: list[str] = runs, streams: list[Connection] = streams) -> int:
            for run_id in runs:
                await workload.stop(control, run_id)
            for stream in streams:
                await stream.rest()
            return count

        best = min(best, (await interleaved(1, {"": (port, stop)}))[""])
        for stream in streams:
            stream.close()
    return best


async def memory(quick: bool) -> Section:
    count = 300 if quick else 2_000
    measured = [
        ("a response that waits, of uvicorn alone (floor)", raw, ours("raw"), None),
        ("a StreamingResponse that waits", Floor().waiting, ours("memory", "plain"), None),
        ("a live run that nobody follows", Stoppable().unfollowed, ours("memory"), None),
        ("a live run with one reader", Stoppable().waiting, ours("memory"), Target(limit=12, absolute=True)),
        ("a page with GET /events", Stoppable().page, ours("memory"), Target(limit=12, absolute=True)),
        ("the same app in somebody's uvicorn", Stoppable().waiting, ours("memory", "plain"), None),
        *(
            (workload.name, workload.waiting, WORKLOADS[workload], None)
            for workload in WORKLOADS
            if isinstance(workload, A2a | Adk)
        ),
    ]
    rows = []
    for name, begin, command, target in measured:
        if is_installed(command):
            with server(command) as port:
                rows.append(Row(name=name, value=await resident(begin, port, count), unit="kB", target=target))
        else:
            rows.append(Row(name=name, note="not installed"))
    return Section(title="Memory", rows=rows, notes=[f"resident, of {count:,}, after a hundred others", PEERS_NOTE])


async def resident(begin: Callable[[Connection], Awaitable[object]], port: int, count: int) -> float:
    """Return the kilobytes that one more takes, each on a connection of its own."""
    kept = []

    async def add(many: int) -> int:
        for _ in range(many):
            kept.append(await Connection.open(port))
            await begin(kept[-1])
        return (await usage(port))[1]

    before = await add(100)
    after = await add(count)
    for connection in kept:
        connection.close()
    return (after - before) / count / 1000


PARTS = {
    "replay": replay,
    "live": live,
    "tokens": tokens,
    "pages": pages,
    "stops": stops_in_memory,
    "file": stops_in_a_file,
    "peers": peer_stops,
    "memory": memory,
    "unread": unread,
}


async def measured(quick: bool, only: Sequence[str] | None) -> list[Section]:
    sections = []
    for name in only or PARTS:  # fresh servers for each, so that none measures what another left behind
        sections.append(await PARTS[name](quick))
        print(as_text(sections[-1]), flush=True)
    return sections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="measure one section; may be repeated; writes nothing"
    )
    options = parser.parse_args()
    known = [*facts(PACKAGES), ("Peers", peers())]
    sections = asyncio.run(measured(options.quick, options.only))
    last_line = summary("server", sections)
    print(json.dumps(as_json(known, sections, last_line)) if options.json else f"\n{last_line}")
    if not options.quick and not options.only:
        write(RESULTS, as_markdown("The server, measured", METHOD, known, sections, last_line))


if __name__ == "__main__":
    main()
