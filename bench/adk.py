"""How long a stop takes on ADK's own server: plain google-adk, where a client can only leave, beside stoppable.

Each shape of an agent works in steps of 10 ms until it is released. Plain: the connection is dropped, and the work of
the second after that is counted. Stoppable: the time from the stop to the end of the client's stream, and the work done
later; a graceful stop releases the call at once, so that what is measured is the stop and not the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
warnings.simplefilter("ignore")

from tests.adapters.adk.serving import Client, served  # noqa: E402
from tests.adapters.adk.test_stops import HELD, SHAPES, THREADS  # noqa: E402

ROUNDS = 5
AFTER_SECONDS = 1.0
LIMITS_MS = {"immediate": 50.0, "graceful": 50.0}


async def plain(server, shape: str) -> int:
    """Return the steps that are done in the second after the client left."""
    world = server.world
    world.reset()
    async with Client(server, shape) as client:
        asking = asyncio.create_task(client.say("go"))
        await world.saw(f"enter {HELD[shape]}")
        asking.cancel()
        await asyncio.wait([asking])
        before = sum(world.ticks.values())
        await asyncio.sleep(AFTER_SECONDS)
        done = sum(world.ticks.values()) - before
        world.release_all()
    return done


async def stoppable(server, shape: str, mode: str) -> tuple[float, int]:
    """Return the milliseconds from the stop to the end of the stream, and the steps that are done after that."""
    world = server.world
    world.reset()
    async with Client(server, shape) as client:
        asking = asyncio.create_task(client.say("go"))
        await world.saw(f"enter {HELD[shape]}")
        start = time.perf_counter()
        response = await client.cancel(mode=mode)
        assert response.status_code == 200, response.text
        if mode == "graceful":
            world.release_all()
            world.release(*(f"chunk {number}" for number in range(9)), "other_tool")
        await asking
        took = (time.perf_counter() - start) * 1000
        before = sum(world.ticks.values())
        await asyncio.sleep(AFTER_SECONDS / 4)
        done = sum(world.ticks.values()) - before
        world.release_all()
        await client.cancel(runId=client.run_id, wait=20)
    return took, done


async def measure(with_stop, without) -> list[str]:
    names = ("shape", "plain: steps after leaving", "immediate", "steps after", "graceful", "steps after")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for shape in SHAPES:
        left = [await plain(without, shape) for _ in range(2)]
        cells = [shape, str(max(left))]
        for mode, limit in LIMITS_MS.items():
            found = [await stoppable(with_stop, shape, mode) for _ in range(ROUNDS)]
            took = statistics.median(ms for ms, _ in found)
            mark = "" if took <= limit or shape in THREADS else " MISS"
            cells += [f"{took:.0f} ms{mark}", str(max(done for _, done in found))]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    release = version("google-adk")
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        with_stop = stack.enter_context(served(folders[0]))
        without = stack.enter_context(served(folders[1], plain=True))
        lines = asyncio.run(measure(with_stop, without))
    note = "By `bench/adk.py`: medians. The thread of a sync tool works on after an immediate stop, and is listed."
    heading = [f"# Stops on google-adk {release}", "", note, ""]
    (ROOT / f"bench/results/adk-{release.partition('.')[0]}.md").write_text("\n".join([*heading, *lines, ""]))


if __name__ == "__main__":
    main()
