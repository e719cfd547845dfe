"""What a stop does to a LangGraph graph: a cancelled task and LangGraph's own drain beside stoppable.

Each graph of the tests is held in the middle of something. A cancel or an immediate stop has to end that by itself; a
drain or a graceful stop releases it at once, so that what is measured is the stop and not the call. Then the thread
takes its next turn, with a model that refuses tool calls without an answer, as providers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
warnings.simplefilter("ignore")

from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.errors import GraphBubbleUp  # noqa: E402
from langgraph.runtime import RunControl  # noqa: E402
from tests.adapters.langgraph.cases import CASES, CONFIG, World, turn  # noqa: E402

import stoppable  # noqa: E402
from stoppable.adapters.langgraph import stoppable_graph  # noqa: E402

ROUNDS = 5
AFTER_SECONDS = 0.05


@dataclass
class Found:
    """What one stop did."""

    ms: float
    after: int
    """Effects after the end that no receipt lists."""
    text: str
    works: bool

    def cell(self) -> str:
        marks = [f"{self.ms:.0f} ms", "next turn works" if self.works else "**next turn fails**"]
        if self.after:
            marks.insert(1, f"**{self.after} effect after**")
        return ", ".join([*marks, *([self.text] if self.text else [])])


async def ended(case, world, graph, start, wait) -> Found:
    await wait
    took = (time.perf_counter() - start) * 1000
    before = len(world.effects)
    world.hold.release()
    await asyncio.sleep(AFTER_SECONDS)
    after = len(world.effects) - before
    values = (await graph.aget_state(CONFIG)).values
    said = values.get("messages", []) if isinstance(values, dict) else []
    is_kept = bool(said) and str(getattr(said[-1], "content", "")).startswith("one two")
    text = "" if str(case) != "mid_stream" else "text kept" if is_kept else "**text lost**"
    try:
        await graph.ainvoke(turn("again"), CONFIG)
    except Exception:
        return Found(took, after, text, works=False)
    return Found(took, after, text, works=True)


async def cancelled(case) -> Found:
    world = World()
    graph = case.build(world, InMemorySaver())
    task = asyncio.create_task(read(graph))
    await world.hold.reached()
    start = time.perf_counter()
    task.cancel()
    return await ended(case, world, graph, start, asyncio.wait([task]))


async def drained(case) -> Found:
    world, control = World(), RunControl()
    graph = case.build(world, InMemorySaver())
    task = asyncio.create_task(read(graph, control=control))
    await world.hold.reached()
    start = time.perf_counter()
    control.request_drain("enough")
    world.hold.release()
    return await ended(case, world, graph, start, asyncio.wait([task]))


async def read(graph, **options) -> None:
    with contextlib.suppress(GraphBubbleUp):  # how a drain ends
        await read_all(graph, **options)


async def read_all(graph, **options) -> None:
    async for _ in graph.astream(turn(), CONFIG, stream_mode=["values", "messages"], **options):
        pass


async def stopped(case, mode) -> Found:
    world = World()
    graph = stoppable_graph(case.build(world, InMemorySaver()))
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await world.hold.reached()
    start = time.perf_counter()
    await handle.stop(mode)
    if mode == "graceful" or case.in_thread:  # no stop can end a thread
        world.hold.release()
    return await ended(case, world, graph, start, handle.outcome())


async def row(case) -> list[str]:
    ways = [
        lambda: cancelled(case),
        lambda: drained(case),
        lambda: stopped(case, "graceful"),
        lambda: stopped(case, "immediate"),
    ]
    cells = [str(case)]
    for way in ways:
        found = [await way() for _ in range(ROUNDS)]
        worst = max(found, key=lambda one: (not one.works, one.after))
        cells.append(Found(statistics.median(one.ms for one in found), worst.after, worst.text, worst.works).cell())
    return cells


def main() -> None:
    names = ("held in", "`task.cancel()`", "`RunControl` drain", "stoppable, graceful", "stoppable, immediate")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for case in CASES:
        lines.append("| " + " | ".join(asyncio.run(row(case))) + " |")
        print(lines[-1], flush=True)
    note = (
        f"By `bench/langgraph_stops.py`: medians of {ROUNDS}, and the worst of the other facts. An effect after the "
        "end is one that no receipt lists. The drain and the graceful stop release what is held at once."
    )
    heading = [f"# Stops on langgraph {version('langgraph')}", "", note, ""]
    (ROOT / "bench/results/langgraph.md").write_text("\n".join([*heading, *lines, ""]))


if __name__ == "__main__":
    main()
