"""An id may be asked for more than once: whatever is told by it is told to the run that the store has under it."""

import asyncio

import pytest
from tests.waiting import until

import stoppable
from stoppable import Limits, Policy, Supervisor
from stoppable.errors import RunConflict, RunHeld
from stoppable.supervisor.jobs import digest

from .kept_agents import forever, steps


async def test_a_stop_of_a_run_elsewhere_reaches_it_though_its_start_is_being_repeated_here(tmp_path):
    """G14, G1: what answers for its gate is the worker that executes it, and not a start that comes to nothing."""
    go = asyncio.Event()

    async def agent():
        return await steps(2, go)

    file = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Supervisor(file) as there, Supervisor(file) as here:
        for number in range(5):
            run_id = f"run-{number}"
            first = await there.start(agent, run_id=run_id)
            await until(lambda run=first.run: run.in_flight)
            again = asyncio.create_task(here.start(agent, run_id=run_id))
            await asyncio.sleep(0)
            receipt = await here.stop(run_id)
            assert (receipt.in_flight, first.run.token.stopped) == (("tool:step",), True)
            assert receipt.acknowledged_at is not None
            go.set()
            assert (await first.outcome()).status == (await (await again).outcome()).status == "stopped"
            go.clear()


async def test_a_stop_of_many_elsewhere_answers_for_them_and_not_for_repeated_starts(tmp_path):
    file = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Supervisor(file) as there, Supervisor(file) as here:
        first = await there.start(forever, run_id="x", owner="me")
        again = asyncio.create_task(here.start(forever, run_id="x", owner="me"))
        await asyncio.sleep(0)
        (receipt,) = await here.stop_where(owner="me")
        assert receipt.acknowledged_at is None or first.run.token.stopped
        assert (await first.outcome()).status == "stopped"
        await again


async def test_a_stop_that_comes_while_its_run_is_being_registered_reaches_it(store):
    async with Supervisor(store) as supervisor:
        for number in range(20):
            starting = asyncio.create_task(supervisor.start(forever, run_id=f"mine-{number}"))
            await asyncio.sleep(0)
            receipt = await supervisor.stop(f"mine-{number}", reason="enough")
            assert receipt.answer == "accepted"
            assert receipt.acknowledged_at is not None
            outcome = await (await starting).outcome()
            assert (outcome.status, outcome.reason.message) == ("stopped", "enough")


async def test_a_start_that_is_repeated_or_refused_inside_a_run_ends_nothing_but_itself(store):
    async def child(go):
        await go.wait()
        return "done"

    async def parent(supervisor):
        go = asyncio.Event()
        first = await supervisor.start(child, go, run_id="child")
        with pytest.raises(RunConflict):
            await supervisor.start(forever, run_id="child")
        repeated = await supervisor.start(steps, 1, run_id="other")
        again = await supervisor.start(steps, 1, run_id="other")
        assert (await supervisor.get("child")).status in {"pending", "running"}
        go.set()
        return [await handle.result() for handle in (first, repeated, again)]

    async with asyncio.timeout(30), Supervisor(store) as supervisor:
        handle = await supervisor.start(parent, supervisor)
        assert await handle.result() == ["done", 1, 1]
        assert [record.status for record in await supervisor.tree(handle.id)] == ["completed"] * 3


def _same(*args):
    return digest("agent", args, {}, {})


def test_a_request_is_the_same_if_its_arguments_are_equal_one_object_or_two():
    word = "user name"
    copy = word[:4] + word[4:]
    assert copy is not word
    assert _same({"a": word, "b": word}) == _same({"a": word, "b": copy})
    assert _same([word]) != _same([word, word])
    assert _same(word) != _same("user") != _same("agent")
    assert digest("agent", (), {"a": 1, "b": 2}, {}) == digest("agent", (), {"b": 2, "a": 1}, {})
    assert _same([{"a": 1, "b": {2: 3, "c": 4}}]) == _same([{"b": {"c": 4, 2: 3}, "a": 1}])
    assert _same({"a": [1, 2]}) != _same({"a": [2, 1]})


OTHERS = [
    {"labels": {"a": "c"}},
    {"limits": Limits(seconds=5)},
    {"policy": Policy(grace=3)},
    {"isolation": "thread"},
    {"on_disconnect": "stop"},
    {"owner": "you"},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
async def test_the_same_id_with_another_request_is_a_conflict_and_not_the_first_run(other, store):
    first = {"run_id": "x", "labels": {"a": "b", "c": "d"}, "limits": Limits(seconds=60), "owner": "me"}
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever, **first)
        again = await supervisor.start(forever, **{**first, "labels": {"c": "d", "a": "b"}})
        assert again.id == handle.id
        with pytest.raises(RunConflict):
            await supervisor.start(forever, **{**first, **other})
        await handle.stop()


def test_a_request_may_contain_itself_share_much_or_be_told_by_its_text_only():
    loop = []
    loop.append(loop)
    doubled = ["x" * 100]
    for _ in range(64):
        doubled = [doubled, doubled]
    deep = []
    for _ in range(50_000):
        deep = [deep]
    for odd in (loop, doubled, lambda: None):
        assert _same(odd) == _same(odd) != _same(1)
    assert _same(deep) != _same(deep), "nobody can tell"


async def test_of_two_starts_of_one_id_the_one_that_was_let_in_is_kept(store):
    async with asyncio.timeout(30), Supervisor(store) as supervisor:
        await supervisor.hold(owner="ann")
        refused, handle = await asyncio.gather(
            supervisor.start(steps, 1, owner="ann", run_id="x"),
            supervisor.start(steps, 1, owner="bob", run_id="x"),
            return_exceptions=True,
        )
        assert isinstance(refused, RunHeld)
        assert await handle.result() == 1
        assert (await handle.record()).status == "completed"


async def test_of_two_children_with_one_id_the_second_changes_nothing_about_the_first(store):
    async def parent():
        async with stoppable.open_run("first", run_id="child"):
            async with stoppable.detached(), stoppable.open_run("not kept", run_id="child"):
                pass
            async with stoppable.open_run("second", run_id="child"):
                stoppable.emit("from the second")
            stoppable.emit("from the first")

    async with asyncio.timeout(30), Supervisor(store) as supervisor:
        handle = await supervisor.start(parent)
        assert (await handle.outcome()).status == "completed"
        told = [event.data["name"] async for event in supervisor.events("child") if event.type == "progress"]
        assert told == ["from the first"]
        assert (await supervisor.get("child")).name == "first"


async def test_a_child_with_the_id_of_another_run_leaves_that_one_alone(tmp_path):
    async def parent():
        async with stoppable.open_run("child", run_id="taken"):
            pass

    file = f"sqlite:///{tmp_path / 'runs.db'}"
    async with asyncio.timeout(30), Supervisor(file) as supervisor:
        taken = await supervisor.start(forever, run_id="taken")
        await until(lambda: taken.status == "running")
        async with Supervisor(file) as other:
            handle = await other.start(parent)
            assert (await handle.outcome()).status == "completed"
            assert (await other.get("taken")).status == "running"
        await taken.stop()
        assert (await taken.outcome()).status == (await taken.record()).status == "stopped"
