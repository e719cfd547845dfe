"""A branch that notices a stop waits for what other branches have begun, in the adapters that know their units."""

import asyncio
import threading

import stoppable
from stoppable.adapters._shared import CurrentSpan, Span, TurnProgress

DEADLINE = 100


async def stopped(body):
    """Run a body in a run that is stopped gracefully before the body looks."""

    async def agent():
        stoppable.current_run().stop("graceful")
        return await body()

    async with asyncio.timeout(DEADLINE):
        return await (await stoppable.spawn(agent, policy=stoppable.Policy(grace=3600))).outcome()


async def branch(units, own):
    """Look at the stop inside a unit."""
    try:
        await units.check(own)
    finally:
        units.end(own)


async def test_it_waits_for_a_call_that_another_branch_has_in_flight():
    async def body():
        units, call, first = TurnProgress(CurrentSpan("test")), Span(None), Span(None)
        units.add(call)
        units.add(first)
        waiting = asyncio.create_task(branch(units, first))
        while not first.waiters:
            await asyncio.sleep(0)
        assert not waiting.done()
        units.end(call)
        await waiting

    assert (await stopped(body)).status == "stopped"


async def test_two_branches_that_have_both_noticed_it_do_not_wait_for_each_other():
    async def body():
        units, parent = TurnProgress(CurrentSpan("test")), Span(None)
        units.add(parent)  # it waits for both
        for own in (first := Span(parent), second := Span(parent)):
            units.add(own)
        await asyncio.gather(branch(units, first), branch(units, second))

    assert (await stopped(body)).status == "stopped"


async def test_a_call_that_ends_on_a_thread_just_before_the_wait_begins_is_noticed(monkeypatch):
    """The branch has seen the call and is about to wait; if it was not woken, it would wait for all of its grace."""

    async def body():
        units, call, first = TurnProgress(CurrentSpan("test")), Span(None), Span(None)
        units.add(call)
        units.add(first)
        loop = asyncio.get_running_loop()
        plain = loop.create_future

        def create_future():
            monkeypatch.undo()
            thread = threading.Thread(target=units.end, args=(call,))
            thread.start()
            thread.join(DEADLINE)
            return plain()

        monkeypatch.setattr(loop, "create_future", create_future)
        await branch(units, first)

    assert (await stopped(body)).status == "stopped"


async def test_threads_begin_and_end_calls_while_a_branch_looks():
    async def body():
        units = TurnProgress(CurrentSpan("test"))
        first = Span(None)
        units.add(first)

        def calls():
            for _ in range(200):
                units.add(one := Span(None))
                units.end(one)

        threads = [threading.Thread(target=calls) for _ in range(20)]
        for thread in threads:
            thread.start()
        try:
            await branch(units, first)
        finally:
            for thread in threads:
                thread.join(DEADLINE)

    assert (await stopped(body)).status == "stopped"


def test_a_turn_of_plain_functions_has_no_loop_to_wake():
    units, call = TurnProgress(CurrentSpan("test")), Span(None)
    with units.suspended(call):
        pass
    units.end(call)
