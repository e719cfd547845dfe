"""Async hooks, and hooks at the end of a run."""

import asyncio
import threading

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable import InvalidArgument, Policy


class Bot:
    """An object whose call is async."""

    def __init__(self):
        self.calls = []

    async def __call__(self, *args):
        await asyncio.sleep(0)
        self.calls.append((stoppable.current_run(), threading.current_thread(), args))


@pytest.mark.parametrize("register", [stoppable.on_stop, stoppable.on_interrupt])
async def test_an_async_hook_is_a_task_of_the_loop_that_it_was_registered_on(register):
    bot = Bot()

    async def body():
        register(bot)
        await asyncio.Event().wait()  # for CANCEL

    handle = await stoppable.spawn(body)
    await until(lambda: handle.run.started_at)
    await handle.stop("immediate")
    await handle.outcome()
    await until(lambda: bot.calls)
    assert bot.calls == [(None, threading.current_thread(), ())]  # detached from the run


@pytest.mark.parametrize(("delivers", "status"), [(True, "stopped"), (False, "completed")])
async def test_a_run_whose_framework_returns_after_its_own_cancel_is_stopped_if_the_hook_delivers(delivers, status):
    cancelled = threading.Event()

    def body():
        stoppable.on_stop(cancelled.set, delivers=delivers)
        with stoppable.shielded(60):  # the code itself does not notice the stop
            assert cancelled.wait(60)
        return "what it had"

    handle = await stoppable.spawn(body)
    await until(lambda: handle.run.started_at)
    await handle.stop("cooperative")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.result) == (status, "what it had")


async def test_an_async_hook_that_fails_is_logged(caplog):
    async def broken():
        raise ValueError("broken hook")

    async def body():
        stoppable.on_end(broken_with)
        stoppable.on_stop(broken)
        stoppable.current_run().stop("cooperative")

    async def broken_with(outcome):
        raise ValueError(f"broken at the end: {outcome.status}")

    await (await stoppable.spawn(body)).outcome()
    await until(lambda: "broken at the end: completed" in caplog.text)
    await until(lambda: "broken hook" in caplog.text)


def test_an_async_hook_needs_an_event_loop_in_a_run_and_nothing_outside():
    with stoppable.open_run("job"), pytest.raises(InvalidArgument, match="no event loop"):
        stoppable.on_stop(Bot())
    stoppable.on_stop(Bot()).remove()


def test_an_async_hook_of_a_loop_that_is_closed_is_not_called_and_that_is_logged(caplog):
    bot, opened = Bot(), stoppable.open_run("job")

    async def enter():
        run = opened.__enter__()
        stoppable.on_stop(bot)
        return run

    run = asyncio.run(enter())
    run.stop("cooperative")
    wait_until(lambda: "its event loop is closed" in caplog.text)
    assert bot.calls == []
    run.lose()


# The end


async def test_a_hook_at_the_end_gets_the_outcome_once():
    bot, plain = Bot(), []

    async def body():
        stoppable.on_end(bot)
        stoppable.on_end(plain.append)
        stoppable.on_end(plain.append).remove()
        with stoppable.on_end(plain.append):
            pass
        return "value"

    outcome = await (await stoppable.spawn(body)).outcome()
    await until(lambda: bot.calls and plain)
    assert [call[2] for call in bot.calls] == [(outcome,)]
    assert plain == [outcome]


async def test_it_is_called_for_a_run_whose_body_never_ends():
    release, ends = threading.Event(), []

    def hangs():
        stoppable.on_end(ends.append)
        release.wait(60)

    handle = await stoppable.spawn(hangs, policy=Policy(grace=0, interrupt=0, cancel=0, kill=0.05))
    await until(lambda: handle.run.started_at)
    await handle.stop("kill")
    await until(lambda: ends)
    assert [outcome.status for outcome in ends] == ["lost"]
    release.set()


async def test_registered_after_the_end_it_is_called_at_once():
    ends = []
    late = asyncio.Event()

    async def outlives():
        await late.wait()
        stoppable.on_end(ends.append)

    async def starts():
        return asyncio.create_task(outlives())

    task = await (await stoppable.spawn(starts)).result()
    late.set()
    await task
    await until(lambda: ends)
    assert [outcome.status for outcome in ends] == ["completed"]


def test_outside_a_run_hooks_at_the_end_do_nothing():
    with stoppable.on_end(print) as hook:
        hook.remove()
    with pytest.raises(InvalidArgument, match="cannot be a hook"):
        stoppable.on_end(None)
