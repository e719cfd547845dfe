"""G12: hooks are called at most once, at once if late, after the subtree is marked; one failing stops no other."""

import asyncio
import functools
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable._core.node import RunNode
from stoppable.testing.scripts import FileProbe


async def test_a_hook_is_called_once_however_often_the_run_is_stopped(clock):
    calls = []
    async with _stopped_run() as run:
        stoppable.on_stop(lambda: calls.append("stop"))
        run.stop("cooperative")
        run.stop("graceful")
        run.stop("kill")
    assert calls == ["stop"]


async def test_a_hook_registered_after_the_stop_is_called_at_once(clock):
    calls = []
    async with _stopped_run() as run:
        run.stop("immediate")
        stoppable.on_stop(lambda: calls.append("stop"))
        stoppable.on_interrupt(lambda: calls.append("interrupt"))
    assert calls == ["stop", "interrupt"]


async def test_a_removed_hook_is_not_called(clock):
    calls = []
    async with _stopped_run() as run:
        with stoppable.on_stop(lambda: calls.append("left")):
            pass
        stoppable.on_stop(lambda: calls.append("removed")).remove()
        run.stop()
    assert calls == []


async def test_the_whole_subtree_is_marked_before_the_first_hook(clock):
    seen = []
    async with _stopped_run() as run:
        child = RunNode("child", run)
        grandchild = RunNode("grandchild", child)
        stoppable.on_stop(lambda: seen.append((run.token.stopped, grandchild.token.stopped)))
        run.stop("cooperative")
        child.skip()
        grandchild.skip()
    assert seen == [(True, True)]


async def test_one_failing_hook_stops_no_other(clock, caplog):
    calls = []
    async with _stopped_run() as run:
        stoppable.on_stop(lambda: 1 / 0)
        stoppable.on_stop(lambda: calls.append("second"))
        run.stop()
    assert calls == ["second"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_hook_may_ask_and_stop_and_register_without_deadlock(clock):
    calls = []
    async with _stopped_run() as run:

        def hook():
            run.stop("immediate")
            calls.append((run.token.stopped, stoppable.should_stop(), stoppable.current_run()))
            with stoppable.boundary("store", "save"):
                calls.append("saved")

        stoppable.on_stop(hook)
        run.stop("cooperative")
    assert calls == [(True, False, None), "saved"]


async def test_interrupt_hooks_are_called_at_their_rung(clock):
    calls = []
    async with _stopped_run() as run:
        stoppable.on_interrupt(lambda: calls.append(clock.now()))
        run.stop()
        clock.advance(9.9)
        assert calls == []
        clock.advance(0.1)
    assert calls == [10]


async def test_a_hook_that_hangs_holds_up_neither_the_stop_nor_another_ladder():
    """On the real clock: hooks have a thread of their own."""
    hanging = threading.Event()
    called = threading.Event()

    async def agent(hook):
        stoppable.on_stop(hook)
        stoppable.on_interrupt(hook)
        await asyncio.sleep(60)

    first = await stoppable.spawn(agent, lambda: hanging.wait(120))
    second = await stoppable.spawn(agent, called.set)
    await asyncio.sleep(0.01)
    await first.stop("immediate")
    await second.stop("immediate")
    assert (await first.outcome()).status == "stopped"
    assert (await second.outcome()).status == "stopped"
    assert called.wait(60)
    hanging.set()


@pytest.mark.parametrize("pairs", [1, 2, 3])
@pytest.mark.parametrize("moment", [stoppable.on_stop, stoppable.on_interrupt])
async def test_a_hook_that_hangs_holds_up_no_other_hook_of_the_same_stop(moment, pairs):
    hanging = threading.Event()
    called = [threading.Event() for _ in range(pairs)]

    async def agent():
        for event in called:
            moment(lambda: hanging.wait(120))
            moment(event.set)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(handle.run.members or ()) == 2 * pairs)
    await handle.stop("immediate")
    try:
        assert all(event.wait(60) for event in called)
    finally:
        hanging.set()
    assert (await handle.outcome()).status == "stopped"


async def test_a_hook_registered_after_the_stop_holds_up_nobody_either():
    hanging, interrupted, registered = threading.Event(), threading.Event(), threading.Event()
    threads = []

    def hook():
        threads.append(threading.current_thread())
        hanging.wait(120)

    async def agent():
        stoppable.on_interrupt(interrupted.set)
        stoppable.current_run().stop("immediate")
        assert interrupted.wait(60)  # blocks the loop: the rung comes before the run ends
        stoppable.on_stop(hook)
        stoppable.on_interrupt(hook)
        registered.set()

    await (await stoppable.spawn(agent)).outcome()
    try:
        assert registered.is_set()
        await until(lambda: len(threads) == 2)
        assert threading.current_thread() not in threads
    finally:
        hanging.set()


async def test_a_stop_succeeds_and_hooks_are_called_later_while_no_thread_can_be_started(monkeypatch):
    start, called = threading.Thread.start, []

    def refuse(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    async with _stopped_run() as run:
        stoppable.on_stop(lambda: called.append("one"))
        stoppable.on_stop(lambda: called.append("two"))
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert run.stop("cooperative").answer == "accepted"
    await until(lambda: sorted(called) == ["one", "two"])


async def test_hooks_that_get_no_thread_of_their_own_are_called_after_the_others(monkeypatch):
    start, called = threading.Thread.start, []

    def only_one(thread):
        def refuse(_thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        start(thread)

    async with _stopped_run() as run:
        for number in range(3):
            stoppable.on_stop(functools.partial(called.append, number))
        monkeypatch.setattr(threading.Thread, "start", only_one)
        run.stop("cooperative")
    await until(lambda: len(called) == 3)
    monkeypatch.undo()  # the end of the loop needs a thread
    assert called == [0, 1, 2]


@pytest.mark.parametrize("bad", [None, "text", 3])
async def test_what_cannot_be_a_hook_is_refused(bad):
    with pytest.raises(stoppable.InvalidArgument, match="pass a function"):
        stoppable.on_stop(bad)


class _stopped_run:  # noqa: N801
    """A run that ends stopped, whatever its block does; the test looks at the hooks."""

    def __init__(self):
        self._run = stoppable.open_run("hooked")

    async def __aenter__(self):
        return await self._run.__aenter__()

    async def __aexit__(self, kind, error, tb):
        stoppable.should_stop()
        try:
            await self._run.__aexit__(kind, error, tb)
        except stoppable.RunStopped:
            pass
        return error is None


async def test_an_interrupt_hook_may_end_a_command_before_it_is_forced(clock, tmp_path):
    """It tells the process to quit, once, though the run has two: both end by themselves, before TERM."""
    probe = FileProbe(tmp_path)
    calls = []

    def quit_all():
        calls.append(clock.now())
        (tmp_path / "quit").touch()

    async def agent():
        stoppable.on_interrupt(quit_all)
        polite = "echo up >> notes; until [ -e quit ]; do sleep 0.01; done; echo bye >> notes"
        await asyncio.gather(*(stoppable.run_process(polite, shell=True, cwd=tmp_path) for _ in range(2)))

    handle = await stoppable.spawn(agent)
    while probe.notes != ["up", "up"]:
        await asyncio.sleep(0.001)
    await handle.stop()
    clock.advance(10)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, calls) == ("stopped", "interrupt", [10])
    assert probe.notes == ["up", "up", "bye", "bye"]


async def test_thousands_of_hooks_are_called_by_a_few_threads():
    """A thread for each would keep everybody else from running for seconds."""
    threads = []

    async def agent():
        for _ in range(3000):
            stoppable.on_stop(lambda: threads.append(threading.get_ident()))
        ready.set()
        await stoppable.sleep(60)

    ready = asyncio.Event()
    handle = await stoppable.spawn(agent)
    await ready.wait()
    await handle.stop()
    await until(lambda: len(threads) == 3000)
    assert len(set(threads)) < 500
    await handle.outcome()


async def test_hooks_that_hang_hold_up_none_that_come_after_them():
    release, called = threading.Event(), threading.Event()

    async def agent():
        for _ in range(20):
            stoppable.on_stop(functools.partial(release.wait, 30))
        stoppable.on_stop(called.set)
        ready.set()
        await stoppable.sleep(60)

    ready = asyncio.Event()
    handle = await stoppable.spawn(agent)
    await ready.wait()
    await handle.stop()
    await until(called.is_set)
    release.set()
    await handle.outcome()


async def test_a_stop_of_a_tree_lists_what_was_in_flight_there_once_however_often_it_is_pressed():
    async def child():
        with stoppable.boundary("tool"):
            await stoppable.sleep(60)

    async def parent():
        for child_handle in [await stoppable.spawn(child) for _ in range(50)]:
            await child_handle.outcome()

    handle = await stoppable.spawn(parent)
    await until(lambda: sum(len(run.in_flight) for run in handle.run.list_children()) == 50)
    one = handle.run.list_children()[0]
    assert one.stop("cooperative").in_flight == ("tool",)
    for _ in range(3):
        assert handle.run.stop().in_flight == ("tool",) * 50
    assert one.stop().in_flight == ("tool",)
    assert (await handle.outcome()).status == "stopped"
