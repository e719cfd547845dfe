"""open_run: a block of existing code as a run, and starts that come to nothing."""

import asyncio
import contextvars
import threading

import pytest

import stoppable
from stoppable import sync
from stoppable._core.node import RunNode, Sink
from stoppable._engine.open_run import edge_around


async def test_open_run_in_a_stopped_run_raises_on_entry():
    async def agent():
        stoppable.current_run().stop("cooperative")
        async with stoppable.open_run("inner"):
            raise AssertionError("never entered")

    assert (await (await stoppable.spawn(agent)).outcome()).status == "stopped"


async def test_a_run_that_was_made_before_and_stopped_raises_on_entry():
    run = RunNode("early")
    run.stop(reason="before")
    with pytest.raises(stoppable.RunStopped):
        async with edge_around(run, None):
            raise AssertionError("never entered")
    assert run.status == "stopped"


def test_open_run_async_needs_a_task_and_leaves_nothing_to_wait_for():
    with stoppable.open_run("parent") as parent:
        coroutine = stoppable.open_run("work").__aenter__()
        with pytest.raises(stoppable.StoppableError, match="running asyncio task"):
            coroutine.send(None)
    assert parent.status == "completed"


@pytest.mark.parametrize("given", [{"policy": {"grace": 1}}, {"limits": {"seconds": 1}}, {"limits": 5}])
def test_limits_and_policies_that_are_none_are_refused_where_they_are_given(given):
    with pytest.raises(stoppable.InvalidArgument, match=r"use stoppable\.(Policy|Limits)\("):
        stoppable.open_run("work", **given)


async def test_one_that_is_never_entered_holds_up_nobody():
    kept = []

    async def agent():
        kept.append(stoppable.open_run("never"))

    handle = await stoppable.spawn(agent)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "completed"


async def test_it_is_a_child_of_the_run_that_it_is_entered_in():
    opened = stoppable.open_run("inner")
    async with stoppable.open_run("outer") as outer, opened as inner:
        assert inner.parent is outer


async def test_a_second_entry_is_refused_and_swallows_nothing():
    opened = stoppable.open_run("once")
    async with opened as run:
        with pytest.raises(stoppable.InvalidArgument, match="again"):
            async with opened:
                raise AssertionError("never entered")
    assert run.status == "completed"
    with pytest.raises(stoppable.InvalidArgument, match="again"):
        async with opened:
            raise AssertionError("never entered")


def test_a_second_entry_of_blocking_code_is_refused_and_swallows_nothing():
    opened = sync.open_run("once")
    with opened:
        pass
    with pytest.raises(stoppable.InvalidArgument, match="again"), opened:
        raise AssertionError("never entered")


@pytest.fixture
def no_more_threads(monkeypatch):
    """The system starts no more threads for runs."""
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("stoppable "):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


async def test_a_plain_block_that_awaits_pays_back_the_cancel_that_cut_it():
    with pytest.raises(stoppable.RunStopped) as caught:
        with stoppable.open_run("plain") as run:
            run.stop("immediate")
            await asyncio.sleep(3600)
    assert (caught.value.outcome.status, caught.value.outcome.rung) == ("stopped", "cancel")
    assert len(run.stops()) == 1  # nobody's cancel came from outside
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_plain_block_that_awaits_passes_an_outside_cancel_on(is_stopped):
    inside = asyncio.Event()
    runs = []

    async def main():
        with stoppable.open_run("plain") as run:
            runs.append(run)
            try:
                inside.set()
                await asyncio.sleep(3600)
            finally:
                if is_stopped:
                    run.stop("cooperative")
                    stoppable.check()

    task = asyncio.create_task(main())
    await inside.wait()
    task.cancel("outside")
    with pytest.raises(asyncio.CancelledError, match="outside"):
        await task
    assert task.cancelling() == 1
    assert runs[0].status == "stopped"


@pytest.mark.usefixtures("no_more_threads")
class TestAThreadThatCannotBeStarted:
    @pytest.mark.parametrize("isolation", ["auto", "process"])
    async def test_is_the_error_of_whoever_spawns_and_keeps_nobody_waiting(self, isolation):
        children = []

        async def agent():
            with pytest.raises(RuntimeError, match="new thread"):
                await stoppable.spawn(threading.active_count, isolation=isolation)
            children.extend(stoppable.current_run().list_children())

        handle = await stoppable.spawn(agent)
        async with asyncio.timeout(30):
            assert (await handle.outcome()).status == "completed"
        assert children == []

    def test_keeps_no_blocking_parent_waiting(self):
        with sync.open_run("parent") as parent:
            with pytest.raises(RuntimeError, match="new thread"):
                sync.spawn(threading.active_count)
        assert parent.status == "completed"

    async def test_is_told_in_the_outcome_of_the_run(self):
        seen = []

        class Ends(Sink):
            def ended(self, run):
                seen.append(run.outcome)

        async with stoppable.open_run("parent") as parent:
            parent.sink = Ends()
            with pytest.raises(RuntimeError, match="new thread"):
                await stoppable.spawn(threading.active_count)
            parent.sink = None
        (outcome,) = seen
        assert outcome.status == "stopped"
        assert "new thread" in outcome.reason.message


def test_a_parent_may_be_given_where_its_context_is_missing():
    found = []

    def work(parent):
        with stoppable.open_run("tool", parent=parent) as run:
            found.append((run.parent, run.labels, stoppable.current_run() is run))

    with stoppable.open_run("outer", labels={"team": "a"}) as outer:
        thread = threading.Thread(target=work, args=(outer,))
        thread.start()
        thread.join()
    assert found == [(outer, {"team": "a"}, True)]


def test_a_child_of_a_given_parent_that_was_stopped_does_not_begin():
    parent = RunNode("outer")
    parent.stop("cooperative", "enough")
    with pytest.raises(stoppable.RunStopped, match="enough"), stoppable.open_run("late", parent=parent):
        raise AssertionError("never begun")
    parent.skip()


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(
    ("mode", "nap"),
    [("graceful", stoppable.sleep), ("immediate", stoppable.sleep), ("immediate", asyncio.sleep)],
)
async def test_a_run_that_a_helper_opened_for_the_task_that_awaits_it_ends_at_once(mode, nap, gathered):
    """As Pydantic AI does: the task that does the work entered the context of the run, and awaits the helper."""
    inside = asyncio.Event()

    async def agent():
        entered, done, contexts = asyncio.Event(), asyncio.Event(), []

        async def helper():
            async with stoppable.open_run("inner"):
                contexts.append(contextvars.copy_context())
                entered.set()
                await done.wait()

        task = asyncio.create_task(helper())
        await entered.wait()
        for variable, value in contexts[0].items():
            variable.set(value)
        try:
            async with stoppable.boundary("llm", "model"):
                inside.set()
                await nap(60)
        finally:
            done.set()
            await (asyncio.gather(task) if gathered else task)

    handle = await stoppable.spawn(agent)
    await inside.wait()
    await handle.stop(mode)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung <= stoppable.Rung.CANCEL) == ("stopped", True)


async def test_a_task_that_left_its_run_does_not_hold_the_run_of_its_helper():
    """The cancel comes while it awaits the helper, and ends both: the helper cannot wait for it any more."""
    inside, leaving = asyncio.Event(), asyncio.Event()

    async def agent():
        entered, done, contexts = asyncio.Event(), asyncio.Event(), []

        async def helper():
            async with stoppable.open_run("inner"):
                contexts.append(contextvars.copy_context())
                entered.set()
                await done.wait()

        task = asyncio.create_task(helper())
        await entered.wait()
        for variable, value in contexts[0].items():
            variable.set(value)
        try:
            async with stoppable.boundary("llm", "model"):
                inside.set()
                await stoppable.sleep(60)
        finally:
            leaving.set()
            await task

    handle = await stoppable.spawn(agent)
    await inside.wait()
    await handle.stop()
    await leaving.wait()
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
