"""A receipt tells when the rungs of a stop are climbed: so that nobody has to guess how long it may take."""

import asyncio

import pytest

import stoppable
from stoppable.testing import FakeClock


@pytest.fixture
def clock():
    with FakeClock() as made:
        yield made


def told(receipt):
    return [(step.rung, step.after) for step in receipt.ladder]


async def stubborn(released):
    """Swallow every cancel until it is released."""
    async with stoppable.boundary("llm"):
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                pass


async def test_the_first_answer_has_the_plan_and_the_last_one_what_was_climbed(clock):
    released = asyncio.Event()
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("job") as run:
            body = asyncio.create_task(stubborn(released))
            await asyncio.sleep(0)
            clock.advance(3)
            receipt = run.stop()
            assert told(receipt) == [("interrupt", 10), ("cancel", 11), ("kill", 16), ("lost", 18)]
            clock.advance(12)
            assert told(run.stop()) == told(receipt), "what was climbed, and what will be"
            released.set()
            await body
    assert told(run.receipt) == [("interrupt", 10), ("cancel", 11)]


async def test_the_earliest_of_several_stops_counts(clock):
    released = asyncio.Event()
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("job") as run:
            body = asyncio.create_task(stubborn(released))
            await asyncio.sleep(0)
            run.stop()
            clock.advance(2)
            sooner = run.stop("immediate")
            assert told(sooner) == [("interrupt", 2), ("cancel", 2), ("kill", 7), ("lost", 9)]
            clock.advance(3)
            assert told(run.stop("kill")) == [("interrupt", 2), ("cancel", 2), ("kill", 5), ("lost", 7)]
            clock.advance(0)
            released.set()
            await body
    assert told(run.receipt) == [("interrupt", 2), ("cancel", 2), ("kill", 5)]


async def test_a_cooperative_stop_has_no_ladder_and_a_polite_run_climbs_none(clock):
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("job") as run:
            assert not stoppable.should_stop()
            assert told(run.stop("cooperative")) == []
            assert told(run.stop()) == [("interrupt", 10), ("cancel", 11), ("kill", 16), ("lost", 18)]
            stoppable.check()
    assert told(run.receipt) == []
