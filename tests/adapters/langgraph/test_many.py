"""A hundred threads of one graph, half of them stopped at random moments: each takes its next turn."""

from __future__ import annotations

import asyncio
import os
import random

from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

import stoppable
from stoppable import Status
from stoppable.adapters.langgraph import stoppable_graph

from .cases import World, turn
from .scripted import DEADLINE, Streaming, calls

THREADS = 100


class Waiting(Streaming):
    """Streams with pauses, so that a stop can land anywhere in it."""

    async def _astream(self, messages, **kwargs):
        async for chunk in super()._astream(messages, **kwargs):
            await asyncio.sleep(0.001)
            yield chunk


def tools_of(world):
    async_tool, blocking = world.tool("book"), world.tool("look", is_async=False)
    return [async_tool, blocking]


class Thread:
    def __init__(self, number, saver):
        self.config = {"configurable": {"thread_id": str(number)}}
        self.model = Waiting(calls("book", "look"), "one two three four", calls("look"), "the end of it")
        self.graph = stoppable_graph(create_agent(self.model, tools_of(World()), checkpointer=saver))

    async def take(self, text, moment):
        """Take a turn, stopped after so many steps of the loop, or not at all; return how it ended."""
        handle = await stoppable.spawn(self.graph, turn(text), self.config)
        if moment is not None:
            steps, mode = moment
            for _ in range(steps):
                await asyncio.sleep(0)
            await handle.stop(mode)
        async with asyncio.timeout(DEADLINE * 2):
            return (await handle.outcome()).status


async def test_all_of_a_hundred_threads_take_their_next_turn_after_half_were_stopped():
    seed = int(os.environ.get("SEED", random.randrange(10**6)))
    print(f"SEED={seed}")
    chosen = random.Random(seed)
    saver = InMemorySaver()
    threads = [Thread(number, saver) for number in range(THREADS)]
    stopped = set(chosen.sample(range(THREADS), THREADS // 2))
    moments = [(chosen.randrange(300), chosen.choice(["graceful", "immediate"])) for _ in threads]
    first = await asyncio.gather(
        *(each.take("hello", moments[n] if n in stopped else None) for n, each in enumerate(threads))
    )
    assert {first[n] for n in range(THREADS) if n not in stopped} == {Status.COMPLETED}
    assert {first[n] for n in stopped} <= {Status.STOPPED, Status.COMPLETED}, f"SEED={seed}"
    second = await asyncio.gather(*(each.take("again", None) for each in threads))
    assert second == [Status.COMPLETED] * THREADS, f"SEED={seed}"
