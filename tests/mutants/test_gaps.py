"""Claims of the specification that no other test would miss: each fails under one of the mutants beside this."""

import asyncio
import contextvars
import math

import pytest

import stoppable
from stoppable._core import context
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant, lock


class StopsWhilePublishing(dict):
    """The members of a run, at the worst moment: the stop comes while a newcomer is published."""

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.receipt = None

    def __setitem__(self, member, value):
        self.receipt = self.receipt or self.run.stop("cooperative")
        super().__setitem__(member, value)


def in_run(run, function):
    def inside():
        context.current.set(run)
        return function()

    return contextvars.copy_context().run(inside)


def enter(boundary):
    boundary.__enter__()


def enter_async(boundary):
    boundary.__aenter__().send(None)


@pytest.mark.parametrize("way", [pytest.param(enter, id="with"), pytest.param(enter_async, id="async with")])
def test_a_stop_that_comes_while_a_boundary_is_published_is_seen_by_it(way):
    """G1: it is not in the snapshot, so it must not be entered."""
    run = RunNode("raced")
    run.begin(None)
    run.members = members = StopsWhilePublishing(run)
    with pytest.raises(stoppable.AgentStopped):
        in_run(run, lambda: way(stoppable.boundary("tool", "raced")))
    assert members.receipt.in_flight == ()
    assert not run.members


def test_a_stop_that_comes_while_a_shielded_boundary_is_published_lists_it():
    """G1: it may be entered, and the receipt says so."""
    run = RunNode("raced")
    run.begin(None)

    def body():
        with stoppable.shielded(5):
            run.members = StopsWhilePublishing(run)
            with stoppable.boundary("tool", "save"):
                pass

    in_run(run, body)
    assert run.receipt.entered_after == ("tool:save",)


def test_an_end_after_the_run_was_given_up_changes_nothing():
    """G2, without a ladder: the second of two writers comes late."""
    run = RunNode("given up")
    run.begin(None)
    run.stop("cooperative")
    run.lose()
    outcome = run.outcome
    assert not run._conclude(stoppable.Status.STOPPED)
    assert run.outcome is outcome
    assert outcome.status == "lost"


async def test_a_task_on_its_way_out_gets_no_second_cancel_for_a_run_further_out(clock):
    """G7: the child's stop has cancelled the task; the parent's stop, which comes to the same task, must not cut."""
    unwinding, cleaned = asyncio.Event(), []
    inner = []

    async def child():
        inner.append(stoppable.current_run())
        try:
            async with stoppable.boundary("llm"):
                await asyncio.sleep(60)
        finally:
            unwinding.set()
            await asyncio.sleep(0.01)
            cleaned.append(True)

    async def parent():
        await stoppable.call(child)

    handle = await stoppable.spawn(parent)
    while not inner:
        await asyncio.sleep(0)
    inner[0].stop("immediate")
    await unwinding.wait()
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert cleaned == [True]
    assert outcome.status == "stopped"
    assert inner[0].outcome.clean


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


def test_two_ladders_send_one_cancel(clock):
    """G7: the first ladder comes to CANCEL when the harder stop that overtook it has been there."""
    run = RunNode("stopped twice")
    undead = Undead()
    run.begin(undead)
    run.checked_at = math.inf  # or it would be cancelled after the blind grace
    run.stop("graceful")
    clock.advance(8)
    run.stop("immediate")
    clock.advance(4)
    assert undead.log == ["cancel"]


def test_a_run_above_a_child_that_was_given_up_is_lost(clock):
    """G8, without asyncio: the parent's body has ended, and a participant of its child is alive."""
    parent = RunNode("parent")
    parent.begin(None)
    child = RunNode("child", parent)
    child.begin(Undead())
    parent.stop("kill")
    parent.end(None, None)
    assert parent.status == "stopping"
    clock.advance(2)
    assert (child.status, parent.status) == ("lost", "lost")


def test_hooks_of_ours_are_called_outside_the_lock():
    run = RunNode("hooked")
    run.begin(None)
    held = []
    run.add_hook(Callback(run, Moment.STOP, lambda: held.append(lock._is_owned())))
    run.stop("cooperative")
    assert held == [False]
