"""A traceback shows the lines of the author, and no line of ours that only calls them."""

import asyncio
import json
import subprocess
import sys

import pytest

import stoppable
from stoppable._engine.source_lines import trace_of


@stoppable.boundary("tool")
async def parse(text):
    return json.loads(text)


@stoppable.agent
async def direct():
    return await parse("{")


@stoppable.agent
async def grouped():
    async with asyncio.TaskGroup() as group:
        group.create_task(parse("{"))


@stoppable.agent
async def chained():
    try:
        await parse("{")
    except ValueError as error:
        raise RuntimeError("cannot parse it") from error


@stoppable.agent
async def calling():
    await stoppable.call(direct)


@pytest.mark.parametrize("agent", [direct, grouped, chained], ids=lambda agent: agent.__name__)
async def test_our_lines_between_those_of_the_author_are_left_out(agent):
    outcome = await (await stoppable.spawn(agent)).outcome()
    trace = trace_of(outcome.error)
    assert f"in {agent.__name__}\n" in trace
    assert "in parse\n" in trace
    assert "in raw_decode\n" in trace
    assert "stoppable/_" not in trace


async def test_the_error_of_a_child_shows_both_the_child_and_the_caller():
    outcome = await (await stoppable.spawn(calling)).outcome()
    cause, _, last = trace_of(outcome.error).partition("direct cause")
    assert "in direct\n" in cause
    assert "stoppable/_" not in cause
    assert "in calling\n" in last
    assert "raise RunFailed" in last, "an error of ours keeps the line that raised it"


COLLECTED_MEANWHILE = """
import gc, sys
from stoppable._engine.source_lines import stacks_of_threads

class Garbage:
    def __init__(self):
        self.cycle = self

    def __del__(self):
        sys._current_frames()  # needs the lock that Python 3.11 holds while it collects the stacks

gc.set_threshold(1, 1, 1)
for _ in range(200):
    Garbage()
    assert stacks_of_threads()
assert gc.isenabled()
"""


def test_a_garbage_collection_does_not_block_the_look_at_all_threads():
    done = subprocess.run([sys.executable, "-c", COLLECTED_MEANWHILE], timeout=60, check=False)
    assert done.returncode == 0
