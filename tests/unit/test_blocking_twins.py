"""The blocking twins of the async names: sleep, spawn and call in plain functions."""

import asyncio
import signal
import threading

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable import sync


class TestBlockingTwins:
    async def test_sleep_is_woken_by_a_stop(self):
        def agent():
            sync.sleep(60)

        handle = await stoppable.spawn(agent)
        await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            await handle.stop("cooperative")
            assert (await handle.outcome()).status == "stopped"

    def test_sleep_outside_a_run_and_in_a_shield_is_plain(self):
        sync.sleep(0.001)
        with pytest.raises(stoppable.RunStopped):
            with sync.open_run("work") as run:
                run.stop("cooperative")
                with stoppable.shielded(5):
                    sync.sleep(0.001)
                stoppable.check()

    def test_agents_of_both_kinds_are_spawned_and_called(self):
        async def asynchronous(x):
            await asyncio.sleep(0)
            return x + 1

        def blocking(x):
            return x + 2

        with sync.open_run("work") as run:
            assert sync.call(asynchronous, 1) == 2
            assert sync.call(blocking, 1) == 3
            handle = sync.spawn(asynchronous, 1)
            assert handle.run.parent is run
            assert handle.result() == 2
            assert "completed" in repr(handle)
        assert sync.call(blocking, 1) == 3
        assert sync.call(asynchronous, 1) == 2

    def test_a_call_that_ctrl_c_leaves_stops_the_agent(self):
        """Nobody else holds it: it would go on to the end of the process, out of reach."""
        runs = []

        async def endless():
            runs.append(stoppable.current_run())
            await until(lambda: len(runs[0]._on_end) > 1)  # the caller waits, besides the loop of the agent
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await asyncio.sleep(3600)

        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                sync.call(endless)
        finally:
            signal.signal(signal.SIGINT, previous)
        try:
            wait_until(lambda: runs[0].outcome is not None)
        finally:
            runs[0].stop("immediate")
        assert (runs[0].outcome.status, runs[0].outcome.reason.kind) == ("stopped", "shutdown")

    def test_a_child_is_stopped_alone_or_with_its_parent(self):
        async def child():
            await stoppable.sleep(60)

        def fails():
            raise ValueError("own")

        with sync.open_run("parent"):
            handle = sync.spawn(child)
            handle.stop(reason="alone")
            assert handle.outcome().status == handle.status == "stopped"
            assert handle.run.receipt.reason.message == "alone"
            assert handle.id == handle.run.id
            with pytest.raises(stoppable.RunStopped):
                handle.result()
            with pytest.raises(stoppable.RunFailed):
                sync.call(fails)
        with pytest.raises(stoppable.RunStopped):
            with sync.open_run("parent") as parent:
                handle = sync.spawn(child)
                parent.stop()
                handle.result()
        assert handle.status == "stopped"

    def test_a_blocking_run_waits_for_the_children_it_left_behind(self):
        release = threading.Event()

        def child():
            release.wait(60)

        with sync.open_run("parent") as parent:
            handle = sync.spawn(child)
            threading.Timer(0.05, release.set).start()
        assert (parent.status, handle.status) == ("completed", "completed")

    def test_a_blocking_run_that_fails_stops_the_children_it_left_behind(self):
        def child():
            sync.sleep(60)

        with pytest.raises(ValueError, match="parent"):
            with sync.open_run("parent"):
                handle = sync.spawn(child)
                raise ValueError("parent")
        assert handle.outcome().reason.kind == "parent"

    def test_a_stop_reaches_the_children_a_blocking_run_waits_for(self):
        def child():
            sync.sleep(60)

        def press(run):
            while run.members is None and run.first_child is None:
                threading.Event().wait(0.001)
            threading.Event().wait(0.05)
            run.stop()

        with pytest.raises(stoppable.RunStopped):
            with sync.open_run("parent") as parent:
                presser = threading.Thread(target=press, args=(parent,))
                presser.start()
                sync.spawn(child)
        presser.join(60)
