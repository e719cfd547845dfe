"""Limits are stops of their own kind."""

import gc
import weakref

import pytest

import stoppable
from stoppable import InvalidArgument, Limits


async def test_a_limit_of_boundaries_is_a_stop_summed_up_the_tree():
    calls = []

    @stoppable.agent
    async def child():
        with stoppable.boundary("llm"):
            calls.append(1)

    with pytest.raises(stoppable.RunStopped, match="limit of 3 llm"):
        async with stoppable.open_run("work", limits=Limits(boundaries={"llm": 3})) as run:
            for _ in range(10):
                await child()
    assert len(calls) == 3
    assert run.outcome.reason.kind == "limit"


async def test_a_childs_own_limit_stops_only_the_child():
    async def child():
        for _ in range(5):
            with stoppable.boundary("llm"):
                pass

    async with stoppable.open_run("parent", limits=Limits(boundaries={"llm": 100})) as parent:
        with pytest.raises(stoppable.RunStopped):
            async with stoppable.open_run("child", limits=Limits(boundaries={"llm": 2})):
                await child()
        with stoppable.shielded(1), stoppable.boundary("llm"):
            pass
    assert parent.status == "completed"


async def test_a_limit_of_sub_runs_is_a_stop():
    async def child():
        return 1

    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work", limits=Limits(boundaries={"subrun": 2})):
            for _ in range(5):
                await stoppable.call(child)


async def test_a_limit_of_seconds_is_a_stop(clock):
    with pytest.raises(stoppable.RunStopped, match="limit of 5 seconds"):
        async with stoppable.open_run("work", limits=Limits(seconds=5)) as run:
            clock.advance(5)
            await stoppable.sleep(60)
    assert run.outcome.reason.kind == "limit"


def test_a_limit_of_seconds_keeps_nothing_of_a_run_that_has_ended(clock):
    class Answer:
        pass

    def work():
        with stoppable.open_run("work", limits=Limits(seconds=3600)):
            answer = Answer()
            stoppable.set_partial(answer)
            clock.advance(1)
            return weakref.ref(answer)

    kept = work()
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    "limits",
    [
        {"seconds": -1},
        {"seconds": 1e10},
        {"boundaries": None},
        {"boundaries": {"llm": -1}},
        {"boundaries": {"llm": 1.5}},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(limits):
    with pytest.raises(InvalidArgument):
        Limits(**limits)
