"""Measures what a run starts: threads, agent processes, process trees, and the tokens that come after a stop.

Threads are timed as in core.py; the rest are medians of a few real starts and stops. A full run writes
bench/results/participants.md.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import math
import multiprocessing
import statistics
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import stoppable
from machine import facts
from measure import Contender, Effort, measure
from stoppable._engine import executors
from stoppable._engine.instrumentation import processes
from stoppable._engine.instrumentation import threads as plain_threads
from stoppable.testing import ModelServer, Reply, Stuck
from table import Row, Section, Target, against, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "participants.md"
METHOD = (
    "Written by `make bench`. Threads: minimum of many interleaved rounds. The rest: medians of real starts and stops."
)
TREE = "for i in $(seq 49); do sleep 1000 & done; echo ready; wait"


def threads(quick: bool) -> Section:
    floor = Contender(
        name="asyncio.to_thread(int) (floor)",
        statement="await to_thread(int)",
        names=lambda: {"to_thread": asyncio.to_thread},
    )
    ours = Contender(
        name="stoppable.to_thread(int)",
        statement="await to_thread(int)",
        names=lambda: {"to_thread": stoppable.to_thread},
    )
    found = measure((floor, ours), Effort(rounds=20 if quick else 100, batch_ns=5_000_000))
    base = found[floor.name]
    assert base is not None, "asyncio is always there"
    rows = [against(base, floor.name, base), against(base, ours.name, found[ours.name], target=Target(limit=2))]
    return Section(title="A call on a thread", rows=rows)


def plain(quick: bool) -> Section:
    """The cost of instrument() outside runs: what our function adds to one that does nothing."""

    def wrapped(make: Callable[..., Callable[..., object]], *args: object) -> Callable[[], object]:
        return functools.partial(make(_nothing), *args)

    ways = {
        "Thread.start": wrapped(plain_threads.start_of, threading.Thread()),
        "ThreadPoolExecutor.submit": wrapped(executors.submit_of, None, int),
        "Popen": wrapped(processes.popen_of, None, ["true"]),
        "os.fork": wrapped(processes.fork_of),
        "Process.start": wrapped(processes.process_start_of, None),
    }
    floor = Contender(name="a function that does nothing (floor)", statement="call()", names=lambda: {"call": _nothing})
    ours = [
        Contender(name=f"{name}, instrumented", statement="call()", names=lambda call=call: {"call": call})
        for name, call in ways.items()
    ]
    stoppable.instrument()
    try:
        found = measure((floor, *ours), Effort(rounds=20 if quick else 100, batch_ns=1_000_000))
    finally:
        stoppable.uninstrument()
    base = found[floor.name]
    assert base is not None, "always there"
    limit = Target(limit=600, absolute=True)
    rows = [against(base, floor.name, base), *(against(base, c.name, found[c.name], target=limit) for c in ours)]
    return Section(title="Plain code outside runs, with instrument()", rows=rows)


def _nothing(*args: object, **kwargs: object) -> None:
    pass


def workers(quick: bool) -> Section:
    rounds = 3 if quick else 10
    multiprocessing.get_context("spawn")

    async def process() -> None:
        started = processes.Process(target=math.factorial, args=(20,))
        started.start()
        await asyncio.to_thread(started.join)

    async def worker() -> None:
        await (await stoppable.spawn(math.factorial, 20, isolation="process")).result()

    async def kill() -> float:
        handle = await stoppable.spawn(time.sleep, 60, isolation="process")
        while not handle.run.members:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.3)
        began = time.perf_counter()
        await handle.stop("kill")
        await handle.outcome()
        return time.perf_counter() - began

    base = _median_ms(process, rounds)
    rows = [
        against(base, "multiprocessing spawn: start, join (floor)", base, unit="ms"),
        against(base, "agent process: start, result", _median_ms(worker, rounds), unit="ms"),
        Row(name="worker in a blocked call: kill → stopped", value=_median_of_ms(kill, rounds), unit="ms"),
    ]
    return Section(title="A process of its own", rows=rows)


def trees(quick: bool) -> Section:
    rounds = 3 if quick else 10

    async def stop(mode: str) -> float:
        async def agent() -> None:
            async with await stoppable.open_process(TREE, shell=True) as process:
                assert process.stdout is not None, "piped"
                await process.stdout.readline()
                ready.set()
                await process.wait()

        ready = asyncio.Event()
        handle = await stoppable.spawn(agent)
        await ready.wait()
        began = time.perf_counter()
        await handle.stop(mode)
        await handle.outcome()
        return time.perf_counter() - began

    rows = [
        Row(name=f"{mode} → stopped", value=_median_of_ms(lambda mode=mode: stop(mode), rounds), unit="ms")
        for mode in ("immediate", "kill")
    ]
    return Section(title="A process tree of 50", rows=rows)


def tokens(quick: bool) -> Section:
    rounds = 2 if quick else 5
    rows = []
    for rate in (0, 10, 100):
        for mode in ("graceful", "immediate"):
            counts = [asyncio.run(_tokens_after_stop(rate, mode)) for _ in range(rounds)]
            name = f"{rate} tokens a second, {mode}"
            rows.append(Row(name=name, value=float(max(counts)), unit="tokens at most"))
    return Section(title="Tokens sent after the stop of a streamed call", rows=rows)


async def _tokens_after_stop(rate: int, mode: str) -> int:
    turn = Reply([f"{number} " for number in range(1000)], rate=rate) if rate else Stuck()
    with ModelServer(turn) as server:

        def agent() -> None:
            body = json.dumps({"model": "m", "stream": True, "messages": []}).encode()
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{server.url}/chat/completions", body, headers)
            with stoppable.boundary("llm"), urllib.request.urlopen(request, timeout=1) as answer:
                for chunk in stoppable.stream(answer):
                    stoppable.append_partial(chunk.decode())

        handle = await stoppable.spawn(agent)
        await server.wait_for_request_async()
        if rate:
            await server.wait_for_tokens_async(3)
        server.mark_stop()
        await handle.stop(mode, grace=0.5)
        await handle.outcome()
        return server.tokens_after_stop


def _median_ms(act: Callable[[], Awaitable[None]], rounds: int) -> float:
    async def timed() -> float:
        began = time.perf_counter()
        await act()
        return time.perf_counter() - began

    return _median_of_ms(timed, rounds)


def _median_of_ms(timed: Callable[[], Awaitable[float]], rounds: int) -> float:
    async def once() -> float:
        return await timed()

    return statistics.median(asyncio.run(once()) for _ in range(rounds)) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print machine-readable results")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    options = parser.parse_args()
    about = facts(("stoppable",))
    sections = [part(options.quick) for part in (threads, plain, workers, trees, tokens)]
    last_line = summary("participants", sections)
    if options.json:
        print(json.dumps(as_json(about, sections, last_line), indent=2))
    else:
        print("\n".join(as_text(section) for section in sections) + f"\n\n{last_line}")
    if not options.quick:
        write(RESULTS, as_markdown("Threads, processes and streams, measured", METHOD, about, sections, last_line))


if __name__ == "__main__":
    main()
