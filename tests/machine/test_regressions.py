"""What the machine found, and the reading of the code while it was written: each in its shortest form."""

import asyncio
import contextvars

import pytest

import stoppable
from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._engine.edge import _Edge


class Rude(BaseException):
    """As a cancelled asyncio future raises it, or sys.exit()."""


async def ticks():
    for _ in range(20):
        await asyncio.sleep(0)


def in_run(run, function):
    def inside():
        context.current.set(run)
        return function()

    return contextvars.copy_context().run(inside)


async def test_a_stop_reaches_what_a_finished_child_left_running(clock):
    """G4: blocking code on a loop's thread does not wait for the children it left behind."""
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("root") as root:
            with stoppable.open_run("between") as between:
                handle = await stoppable.spawn(asyncio.sleep, 60)
                await ticks()
            assert between.status == "completed"
            root.stop("cooperative")
            reached = handle.run.token.stopped
            handle.run.stop("immediate")
            await handle.outcome()
    assert reached


async def test_a_stop_that_came_too_late_for_its_target_still_ends_the_children(clock):
    """G6: the target completed before anything was delivered; its child was reached by the same stop."""
    with stoppable.open_run("target") as target:
        handle = await stoppable.spawn(asyncio.sleep, 60)
        await ticks()
        target.stop("graceful")
    clock.advance(11)
    await ticks()
    status = handle.status
    handle.run.stop("kill")
    await handle.outcome()
    assert (target.status, status) == ("completed", "stopped")


async def test_a_run_is_not_stopped_while_a_task_of_a_finished_child_is_inside_a_boundary(clock):
    """G8, G1: a task that a child started and did not wait for."""
    release = asyncio.Event()
    tasks = []

    async def left_behind():
        with stoppable.boundary("tool", "left behind"):
            await release.wait()

    async def child():
        tasks.append(asyncio.create_task(left_behind()))
        await ticks()

    async def parent():
        await stoppable.call(child)
        await stoppable.sleep(60)

    handle = await stoppable.spawn(parent)
    await ticks()
    await ticks()
    receipt = await handle.stop("cooperative")
    await ticks()
    status = handle.status
    release.set()
    await asyncio.gather(*tasks)
    assert (status, receipt.in_flight) == ("stopping", ("tool:left behind",))
    assert (await handle.outcome()).status == "stopped"


async def test_a_sibling_that_outlives_the_body_is_cancelled(clock):
    """G6: the run stays stopping and the ladder goes on; the machine cannot see it, as its actors are no tasks."""
    tasks = []

    async def sibling():
        with stoppable.boundary("tool", "sibling"):
            await asyncio.sleep(60)

    async def agent():
        tasks.append(asyncio.create_task(sibling()))
        while not stoppable.should_stop():
            await asyncio.sleep(0)

    handle = await stoppable.spawn(agent)
    await ticks()
    await handle.stop("graceful")
    await ticks()
    assert handle.status == "stopping"
    clock.advance(11)
    await ticks()
    status = handle.status
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert status == "stopped"


@pytest.mark.parametrize("start", ["gather", "spawn"])
async def test_a_shield_holds_cancel_back_for_the_tasks_started_in_it(start, clock):
    """G7: a clean-up that saves two things at once."""
    release, saved = asyncio.Event(), []

    async def save(name):
        with stoppable.boundary("store", name):
            await release.wait()
            saved.append(name)

    async def agent():
        async with stoppable.shielded(4):
            if start == "gather":
                await asyncio.gather(save("one"), save("two"))
            else:
                for handle in [await stoppable.spawn(save, "one"), await stoppable.spawn(save, "two")]:
                    await handle.outcome()

    handle = await stoppable.spawn(agent)
    await ticks()
    await handle.stop("immediate")
    await ticks()
    release.set()
    await handle.outcome()
    assert saved == ["one", "two"]


def test_a_hook_that_raises_more_than_an_exception_stops_no_other(clock):
    """G12, G10."""
    calls = []

    def rude():
        raise Rude

    run = RunNode("hooked")
    run.begin(None)
    in_run(run, lambda: (stoppable.on_stop(rude), stoppable.on_stop(lambda: calls.append("second"))))
    run.stop("cooperative")
    assert calls == ["second"]


def test_a_boundary_entered_after_two_stops_is_listed_once():
    run = RunNode("saves")
    run.begin(None)
    run.stop("cooperative")
    run.stop("graceful", grace=60)

    def clean_up():
        with stoppable.shielded(5), stoppable.boundary("tool", "save"):
            pass

    in_run(run, clean_up)
    run.end(None, None)
    assert run.receipt.entered_after == ("tool:save",)


async def test_the_gate_of_a_finished_run_is_closed_for_what_its_shield_left_behind(clock):
    """G1: a finished run's gate is closed too."""
    release = asyncio.Event()

    async def late():
        await release.wait()
        with stoppable.boundary("tool", "late"):
            return "entered"

    async def agent():
        async with stoppable.shielded(30):
            return asyncio.create_task(late())

    handle = await stoppable.spawn(agent)
    task = await handle.result()
    release.set()
    (answer,) = await asyncio.gather(task, return_exceptions=True)
    assert handle.status == "completed"
    assert isinstance(answer, stoppable.AgentStopped)


async def test_a_run_that_is_over_before_it_began_never_runs_its_body(clock):
    """G2: it was stopped and given up while it waited for its first step."""
    ran = []

    async def child():
        ran.append(True)

    async def agent():
        async with stoppable.shielded(30):
            handle = await stoppable.spawn(child)
            await handle.stop("kill")
            clock.advance(2)
            assert handle.status == "lost"
            await ticks()

    await (await stoppable.spawn(agent)).outcome()
    assert not ran


async def test_an_interrupt_hook_of_a_child_born_after_interrupt_is_called_at_once(clock):
    """G12: a clean-up in a shield may start runs."""
    calls, proceed = [], asyncio.Event()

    async def clean_up():
        stoppable.on_interrupt(lambda: calls.append(clock.now()))

    async def agent():
        async with stoppable.shielded(30):
            await proceed.wait()
            await stoppable.call(clean_up)

    handle = await stoppable.spawn(agent)
    await ticks()
    await handle.stop("graceful")
    clock.advance(10)
    proceed.set()
    await handle.outcome()
    assert calls == [10]


async def test_a_task_that_checks_in_a_shield_takes_part():
    """G8: a task takes part if it entered a boundary or check of the run."""
    release = asyncio.Event()

    async def helper():
        stoppable.check()
        await release.wait()

    async def agent():
        async with stoppable.shielded(5):
            task = asyncio.create_task(helper())
            await ticks()
        while not stoppable.should_stop():
            await asyncio.sleep(0)
        return task

    handle = await stoppable.spawn(agent)
    await ticks()
    await handle.stop("cooperative")
    await ticks()
    await ticks()
    status = handle.status
    release.set()
    await handle.outcome()
    assert status == "stopping"


def test_a_final_receipt_stays_as_it_is_when_an_ancestor_is_stopped_later(clock):
    """G2: a child that was given up, still alive, and then a harder stop of its parent."""
    parent = RunNode("parent")
    parent.begin(None)
    child = RunNode("child", parent)
    child.begin(Undead())
    child.stop("immediate")
    clock.advance(7)
    final = child.receipt
    assert final.status == "lost"
    parent.stop("kill")
    assert child.receipt == final


async def test_a_stop_reaches_a_child_of_a_finished_run_that_has_not_begun(clock):
    """G4: as the first one above, before the child's first step."""
    ran = []

    async def child():
        ran.append(True)

    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("root") as root:
            with stoppable.open_run("between"):
                handle = await stoppable.spawn(child)
            root.stop("cooperative")
            await handle.outcome()
    assert (handle.status, ran) == ("stopped", [])


async def test_a_task_started_in_two_shields_is_protected_until_the_outer_is_left(clock):
    proceed = asyncio.Event()

    async def save():
        await proceed.wait()
        with stoppable.boundary("store", "save"):
            return "saved"

    async def agent():
        async with stoppable.shielded(30):
            async with stoppable.shielded(5):
                task = asyncio.create_task(save())
                await ticks()
            stoppable.current_run().stop("cooperative")
            proceed.set()
            stoppable.set_partial(await task)

    assert (await (await stoppable.spawn(agent)).outcome()).partial == "saved"


async def test_a_task_that_checks_in_a_shield_is_protected_too(clock):
    """G7: CANCEL waits for it as for those inside a boundary."""
    release, done = asyncio.Event(), []

    async def helper():
        stoppable.check()
        await release.wait()
        done.append(True)

    async def agent():
        async with stoppable.shielded(4):
            await asyncio.gather(helper(), helper())

    handle = await stoppable.spawn(agent)
    await ticks()
    await handle.stop("immediate")
    await ticks()
    release.set()
    await handle.outcome()
    assert done == [True, True]


async def test_a_shield_entered_after_the_outer_was_left_has_its_own_time(clock):
    """G6: of a task that was started in a shield of thirty seconds and enters one of its own when that is over."""
    answers = []

    async def helper():
        while not stoppable.current_run().token.stopped:
            await asyncio.sleep(0)
        with stoppable.shielded(1):
            clock.advance(2)
            answers.append(stoppable.should_stop())

    async def agent():
        async with stoppable.shielded(30):
            task = asyncio.create_task(helper())
            await ticks()
        stoppable.current_run().stop("cooperative")
        await task

    await (await stoppable.spawn(agent)).outcome()
    assert answers == [True]


def test_hooks_of_a_finished_run_are_not_called_by_a_later_stop_above_it(clock):
    """G12: the run was never told to stop; it is within reach only because of what it left running."""
    calls = []
    parent = RunNode("parent")
    parent.begin(None)
    finished = RunNode("finished", parent)
    finished.begin(None)
    in_run(finished, lambda: stoppable.on_stop(lambda: calls.append("stop")))
    in_run(finished, lambda: stoppable.on_interrupt(lambda: calls.append("interrupt")))
    RunNode("left behind", finished).begin(Undead())
    finished.end(None, None)
    parent.stop("immediate")
    assert (finished.status, calls) == ("completed", [])


def test_an_older_ladder_sends_nothing_to_a_run_that_was_given_up(clock):
    """G7: the harder stop has sent CANCEL and KILL; the gentle one comes to them seconds later."""
    run = RunNode("given up")
    undead = Undead()
    run.begin(undead)
    run.stop("graceful")
    clock.advance(5)
    run.stop("kill")
    clock.advance(30)
    assert (run.status, undead.log) == ("lost", ["cancel", "kill"])


def test_a_stopping_run_above_a_lost_node_is_lost_also_with_a_finished_run_in_between(clock):
    """G8: as for a child of its own, when the lost one is given up and not when its own ladder ends."""
    parent = RunNode("parent")
    parent.begin(None)
    between = RunNode("between", parent)
    between.begin(None)
    lost = RunNode("lost", between)
    lost.begin(Undead())
    between.end(None, None)
    parent.stop("graceful")
    in_run(parent, stoppable.should_stop)
    parent.end(None, None)
    lost.stop("kill")
    clock.advance(2)
    assert (between.status, lost.status) == ("completed", "lost")
    assert parent.status == "lost"


def test_a_final_receipt_says_for_good_that_the_run_never_looked(clock):
    """Also if something that the run left behind looks, before the blind grace would have been over."""
    run = RunNode("blind")
    run.begin(Undead())
    run.stop()
    run.deliver(raised=True)
    run.end(None, None)
    assert (run.status, run.receipt.blind) == ("stopped", True)
    run.admit(Undead())
    in_run(run, stoppable.should_stop)
    clock.advance(2)
    assert run.receipt.blind


def test_the_final_receipt_of_a_child_stays_when_its_parent_turns_out_not_to_be_blind(clock):
    parent = RunNode("parent")
    parent.begin(Undead())
    child = RunNode("child", parent)
    child.begin(Undead())
    clock.advance(10)
    parent.stop()
    child.deliver(raised=True)
    child.end(None, None)
    final = child.receipt
    assert (child.status, final.blind, parent.receipt.blind) == ("stopped", True, True)
    in_run(parent, stoppable.should_stop)
    clock.advance(2)
    assert not parent.receipt.blind
    assert child.receipt == final
    parent.stop("kill")
    clock.advance(2)


@pytest.mark.parametrize("look", [stoppable.should_stop, stoppable.check])
def test_a_run_that_was_started_in_a_shield_and_looked_gets_its_grace(clock, look):
    run = RunNode("cleans up")
    run.begin(Undead())

    def clean_up():
        with stoppable.shielded(5):
            edge = _Edge(RunNode("child", run))
            edge._open(Undead())
            return edge.run, look(), context.current.get().checked_at

    child, _, looked = in_run(run, clean_up)
    assert looked == clock.now()
    assert not child.stop().blind
    child.stop("kill")
    clock.advance(2)


class Undead(Participant):
    """Force is noted and does nothing."""

    __slots__ = ("log",)

    def __init__(self):
        self.log = []

    @classmethod
    def climb(cls, rung, targets):
        for participant in targets:
            participant.log.append(str(rung))

    def alive(self):
        return True

    def describe(self):
        return "undead"


def test_a_parent_waits_for_the_child_after_one_that_was_given_up():
    parent = RunNode("parent")
    first, second = RunNode("first", parent), RunNode("second", parent)
    for run in (parent, first, second):
        run.begin(Undead())
    parent.stop("cooperative")
    first.lose()
    for run in (parent, second):
        assert parent.status == "stopping"
        run.deliver(raised=True)
        run.end(None, None)
    assert (second.status, parent.status) == ("stopped", "lost")
