"""A large tree does not hold up the stops of other runs: what the control thread does for it is done in slices."""

import asyncio
import contextlib
import random
import threading
from typing import ClassVar

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable import Policy, Supervisor
from stoppable._core import clock, stop
from stoppable._core.boundary import boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.stop import Answer, Stop, write_receipt
from stoppable._core.values import Mode, Reason, Rung
from stoppable._engine import control, ladder

CHILDREN = 10_000


class Stubborn(Participant):
    """Executes a run until it is released, whatever force is applied."""

    is_alive = True
    forces: ClassVar[list] = []

    @classmethod
    def climb(cls, rung, targets):
        cls.forces.append((rung, len(targets)))

    def alive(self):
        return self.is_alive

    def describe(self):
        return "a stubborn one"


@pytest.fixture
def tree():
    """A run with ten thousand children that nothing ends."""
    Stubborn.forces = []
    root = RunNode("root", policy=Policy(grace=0, interrupt=0, cancel=0.05, kill=0.05))
    root.begin(Stubborn())
    for _ in range(CHILDREN):
        RunNode("child", root).begin(Stubborn())
    return root


def test_other_timers_are_fired_while_a_large_tree_is_climbed(tree):
    """The first run has been reached and the last one has not: with one timer for all, nobody would see that."""
    nodes = [tree, *tree.children]
    seen = set()

    def look():
        first, last = nodes[0].rung, nodes[-1].rung
        if first is not last:
            seen.add(first)
        if tree.outcome is None:
            control.get().call_at(clock.now(), look)

    tree.stop("graceful", grace=0.05)
    look()
    assert wait_until(lambda: tree.outcome).status == "lost"
    assert {node.status for node in nodes} == {"lost"}
    assert seen == {Rung.INTERRUPT, Rung.CANCEL, Rung.KILL, Rung.LOST}


def test_force_is_applied_to_all_participants_at_once_nevertheless(tree):
    """A task group that is cancelled passes the cancel on: its tasks must not get another one later."""
    tree.stop("kill")
    wait_until(lambda: tree.outcome)
    assert Stubborn.forces == [(Rung.CANCEL, CHILDREN + 1), (Rung.KILL, CHILDREN + 1)]


def test_a_clock_that_a_test_drives_climbs_a_rung_in_one_go(tree):
    with stoppable.testing.FakeClock() as driven:
        tree.stop("kill")
        driven.advance(0.05)
        assert tree.status == "lost"


def test_a_rung_that_fails_is_logged_and_the_next_one_is_climbed(caplog, monkeypatch):
    run = RunNode("root", policy=Policy(cancel=0, kill=0.01))
    seat = Stubborn()
    run.begin(seat)
    monkeypatch.setattr(Stubborn, "climb", classmethod(lambda *_: 1 / 0))
    run.stop("immediate")
    assert wait_until(lambda: run.outcome).status == "lost"
    assert "the rung cancel failed" in caplog.text
    seat.is_alive = False


def test_a_ladder_that_has_ended_is_let_go():
    run = RunNode("root")
    seat = Stubborn()
    run.begin(seat)
    run.stop("graceful")
    made = wait_until(lambda: [one for one in control.get().waiting if one._stop and one._stop.target is run])[0]
    seat.is_alive = False
    run.end(None, None)
    assert made.is_cancelled()
    assert made not in control.get().waiting
    made.fire()
    made.start()
    assert not made.must_be_scheduled()


class Counted(list):
    """A list that counts how often its elements are read."""

    reads = 0

    def __iter__(self):
        for entry in super().__iter__():
            Counted.reads += 1
            yield entry

    def __getitem__(self, key):
        Counted.reads += 1
        return super().__getitem__(key)


def test_the_receipts_of_all_runs_do_not_each_read_the_whole_tree(tree):
    stop = Stop(tree, Mode.COOPERATIVE, Reason())
    RunNode.tell([stop])
    stop.nodes = Counted(stop.nodes)
    Counted.reads = 0
    for child in tree.children:
        assert write_receipt(child, Answer.ACCEPTED).status == "stopping"
    assert Counted.reads < 10 * CHILDREN
    tree.stop("kill")
    wait_until(lambda: tree.outcome)
    assert [node.run_id for node in tree.children[7].receipt.entries][:1] == [tree.children[7].id]


def test_the_part_of_a_stop_in_a_subtree_is_what_a_search_through_all_of_it_finds():
    """Trees of any shape, children that come after the stop, and a second look after more was reached."""
    dice = random.Random(7)
    for _ in range(50):
        nodes = [RunNode("root")]
        stop = Stop(nodes[0], Mode.COOPERATIVE, Reason())

        def grow(count, nodes=nodes, stop=stop):
            for _ in range(count):
                node = RunNode("node", dice.choice(nodes))
                node.begin(Stubborn())
                node.admit(boundary("tool", str(len(nodes))))
                nodes.append(node)

        grow(dice.randrange(1, 12))
        RunNode.tell([stop])
        for more in (0, 3):
            for _ in range(more):  # as ``_adopt`` does it, and once more as if it met the marking
                late = RunNode("late", dice.choice(nodes))
                nodes.append(late)
                stop.nodes.append(late)
                stop.note_after((late, "tool late"))
                stop.note_abandoned(late, ("a thread", ()))
            stop.idle = [opened for _, opened in stop.in_flight if dice.random() < more / 3]
            for run in nodes:
                part = stop.by_run().part(run)
                assert set(part.idle) == {opened for _, opened in part.in_flight} & set(stop.idle)
                assert sorted(node.id for node in part.nodes) == sorted(
                    {node.id for node in stop.nodes if node.is_within(run)}
                )
                for name in ("in_flight", "after", "abandoned"):
                    whole = [entry for entry in getattr(stop, name) if entry[0].is_within(run)]
                    assert sorted(map(id, getattr(part, name))) == sorted(map(id, whole))


@contextlib.contextmanager
def held_stores():
    """Keep the thread that calls stores busy, as a large tree does."""
    is_held, let_go = threading.Event(), threading.Event()
    control.for_stores().call_at(clock.now(), lambda: (is_held.set(), let_go.wait(60)))
    assert is_held.wait(30)
    try:
        yield
    finally:
        let_go.set()


async def test_a_ladder_climbs_while_a_store_is_told_about_another_run():
    async def agent():
        await asyncio.sleep(60)

    async with Supervisor() as supervisor:
        handle = await supervisor.start(agent, policy=Policy(blind_grace=0.01))
        await until(lambda: handle.status == "running")
        with held_stores():
            handle.run.stop()
            outcome = await until(lambda: handle.run.outcome)
            assert (outcome.status, outcome.rung) == ("stopped", "cancel")
        assert (await handle.outcome()).status == "stopped"


@pytest.mark.parametrize("wait", [None, 30.0])
async def test_the_entries_of_a_receipt_are_written_once(monkeypatch, wait):
    write, runs = stop._entries, []

    def count(parts, in_flight):
        runs.append(sum(len(part.nodes) for part in parts))
        return write(parts, in_flight)

    monkeypatch.setattr(stop, "_entries", count)
    async with Supervisor() as supervisor:
        handle = await supervisor.start(asyncio.sleep, 60)
        await until(lambda: handle.status == "running")
        await supervisor.stop(handle.id, "immediate", wait=wait)
        await handle.outcome()
        await until(lambda: not supervisor._core.writer.logs)
        receipt = (await handle.record()).receipt
    assert ([entry.kind for entry in receipt.entries], runs) == (["run"], [1])


def test_slices_are_short():
    assert ladder._SLICE_SECONDS <= 0.005
