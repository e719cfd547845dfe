"""Boundaries that one callback enters and another leaves."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import Policy, Supervisor


def fates(run):
    return {node.name: node.fate for node in run.receipt.entries if node.kind == "tool"}


class Callbacks:
    """As a framework calls them: one before a tool, one after it, none if it is cancelled."""

    def __init__(self):
        self.open = {}

    def before(self, name):
        self.open[name] = stoppable.enter("tool", name)

    def after(self, name, error=None):
        self.open.pop(name).leave(error)


async def test_it_is_in_flight_from_one_callback_to_the_other():
    callbacks = Callbacks()
    async with stoppable.open_run("job") as run:
        callbacks.before("search")
        assert run.in_flight == ("tool:search",)
        entered = callbacks.open["search"]
        callbacks.after("search")
        assert run.in_flight == ()
        entered.leave()  # again


@pytest.mark.usefixtures("uninstrumented")
async def test_it_may_be_left_on_another_thread_and_its_error_is_its_fate():
    callbacks, begun, proceed = Callbacks(), asyncio.Event(), asyncio.Event()

    async def body():
        callbacks.before("fails")
        callbacks.before("works")
        begun.set()
        await proceed.wait()
        for arguments in (("fails", ValueError("own")), ("works",)):
            thread = threading.Thread(target=callbacks.after, args=arguments)
            thread.start()
            thread.join()
        stoppable.check()

    handle = await stoppable.spawn(body)
    await begun.wait()
    assert (await handle.stop()).in_flight == ("tool:fails", "tool:works")
    proceed.set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle.run) == {"fails": "finished", "works": "finished"}


@pytest.mark.parametrize(("mode", "fate"), [("immediate", "cancelled"), ("cooperative", "closed")])
async def test_it_ends_with_the_task_that_entered_it(mode, fate):
    callbacks, begun, proceed = Callbacks(), asyncio.Event(), asyncio.Event()

    async def tool():
        callbacks.before("search")
        begun.set()
        await proceed.wait()
        stoppable.check()

    async def body():
        await asyncio.create_task(tool())

    handle = await stoppable.spawn(body)
    await begun.wait()
    receipt = await handle.stop(mode)
    assert receipt.in_flight == ("tool:search",)
    if mode == "cooperative":
        proceed.set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle.run) == {"search": fate}
    assert handle.run.in_flight == ()


@pytest.mark.parametrize(("mode", "fate"), [("immediate", "cancelled"), ("cooperative", "closed")])
async def test_it_ends_with_the_run_whose_own_task_entered_it(mode, fate):
    callbacks, begun, proceed = Callbacks(), asyncio.Event(), asyncio.Event()

    async def body():
        callbacks.before("search")
        begun.set()
        await proceed.wait()
        stoppable.check()

    handle = await stoppable.spawn(body)
    await begun.wait()
    await handle.stop(mode)
    if mode == "cooperative":
        proceed.set()
    outcome = await handle.outcome()
    assert (outcome.status, fates(handle.run)) == ("stopped", {"search": fate})
    assert handle.run.in_flight == ()


def test_on_a_thread_that_hangs_it_is_abandoned_with_the_run():
    callbacks, begun, release = Callbacks(), threading.Event(), threading.Event()

    def body():
        callbacks.before("search")
        begun.set()
        release.wait(60)

    policy = Policy(grace=0, interrupt=0, cancel=0, kill=0.05)
    handle = stoppable.sync.spawn(body, policy=policy)
    assert begun.wait(30)
    handle.stop("kill")
    assert (handle.outcome().status, fates(handle.run)) == ("lost", {"search": "abandoned"})
    final = handle.receipt()
    release.set()
    callbacks.after("search")
    assert handle.receipt() == final


async def test_one_that_a_run_left_behind_finished_with_it():
    async def body():
        stoppable.enter("tool", "forgotten")
        stoppable.current_run().stop("cooperative")
        return "value"

    handle = await stoppable.spawn(body)
    assert await handle.result() == "value"
    assert fates(handle.run) == {"forgotten": "finished"}


async def test_a_stopped_run_lets_nobody_in_and_outside_a_run_it_does_nothing():
    async def body():
        stoppable.current_run().stop()
        stoppable.enter("tool", "never")

    assert (await (await stoppable.spawn(body)).outcome()).status == "stopped"
    stoppable.enter("tool", "outside").leave()


async def test_it_is_told_in_the_log():
    async def body():
        stoppable.enter("tool", "search").leave()

    async with Supervisor() as supervisor:
        handle = await supervisor.start(body)
        await handle.outcome()
        told = [event.type async for event in handle.events() if event.data.get("name") == "search"]
    assert told == ["entered", "left"]


async def test_an_error_of_the_task_is_still_reported_by_asyncio():
    seen = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["message"]))

    async def tool():
        stoppable.enter("tool", "breaks")
        raise ValueError("nobody asks")

    async with stoppable.open_run("job"):
        task = asyncio.create_task(tool())
        await until(task.done)
        del task
    await until(lambda: seen)
    assert "never retrieved" in seen[0]


@pytest.mark.parametrize("until_end", ["task", "run"])
async def test_a_callback_in_a_task_of_its_own_enters_for_the_call_after_it(until_end):
    """As openai-agents calls its hooks: with gather, before the tool."""
    entered, begun, proceed = [], asyncio.Event(), asyncio.Event()

    async def before():
        entered.append(stoppable.enter("tool", "search", until=until_end))

    async def body():
        await asyncio.gather(before(), asyncio.sleep(0))
        begun.set()
        await proceed.wait()
        entered[0].leave()
        stoppable.check()

    handle = await stoppable.spawn(body)
    await begun.wait()
    assert (await handle.stop()).in_flight == ("tool:search",)
    proceed.set()
    assert (await handle.outcome()).status == "stopped"
    assert fates(handle.run) == {"search": "finished"}


@pytest.mark.parametrize(("until_end", "in_flight"), [("task", ()), ("run", ("tool:search",))])
async def test_a_failed_callback_leaves_what_it_entered_unless_it_is_for_the_run(until_end, in_flight):
    async def before():
        stoppable.enter("tool", "search", until=until_end)
        raise ValueError

    async with stoppable.open_run("job") as run:
        await asyncio.gather(before(), return_exceptions=True)
        await asyncio.sleep(0)
        assert run.in_flight == in_flight


async def test_an_unknown_end_is_refused():
    with pytest.raises(stoppable.InvalidArgument, match="use task or run"):
        stoppable.enter("tool", "search", until="end")
