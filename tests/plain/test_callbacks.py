"""Callbacks, initializers and futures of a run's calls belong to the run, on whichever thread they are called."""

import asyncio
import concurrent.futures
import logging
import multiprocessing.pool
import subprocess
import threading
import weakref

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.instrumentation import user_code

from .process_bodies import double


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool


def _on_future(pool, work, callback):
    pool.submit(work).add_done_callback(callback)


def _on_thread_pool(pool, work, callback):
    multiprocessing_pool.apply_async(work, callback=callback)


def _on_map(pool, work, callback):
    multiprocessing_pool.map_async(lambda _: work(), [1], callback=callback)


def _on_error(pool, work, callback):
    def fails():
        work()
        raise ValueError

    multiprocessing_pool.apply_async(fails, error_callback=callback)


multiprocessing_pool = None


@pytest.fixture(autouse=True)
def _thread_pool():
    global multiprocessing_pool
    with multiprocessing.pool.ThreadPool(1) as multiprocessing_pool:
        yield


REGISTERS = [_on_future, _on_thread_pool, _on_map, _on_error]


@pytest.mark.parametrize("register", REGISTERS)
async def test_a_callback_is_in_flight_and_the_run_is_not_stopped_before_it_has_ended(pool, register):
    began, release = threading.Event(), threading.Event()
    seen = []

    def callback(_result):
        seen.append(stoppable.current_run())
        began.set()
        release.wait(30)
        threading.Thread(target=seen.append, args=("never",)).start()

    async def agent():
        registered = threading.Event()
        register(pool, lambda: registered.wait(30), callback)
        registered.set()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    receipt = await handle.stop("immediate")
    (name,) = receipt.in_flight
    assert name.endswith("callback")
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert seen == [handle.run]
    assert pool.submit(double, 2).result(30) == 4  # the thread has survived
    assert multiprocessing_pool.apply(double, (2,)) == 4


@pytest.mark.parametrize("register", REGISTERS)
async def test_after_the_stop_a_callback_is_not_begun(pool, register):
    began, release, called = threading.Event(), threading.Event(), []

    def work():
        began.set()
        release.wait(30)

    async def agent():
        register(pool, work, called.append)
        register(pool, work, lambda _: called.append("user's"))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("immediate")
    release.set()
    assert (await handle.outcome()).status == "stopped"
    pool.submit(int).result(30)
    multiprocessing_pool.apply(int)
    assert "user's" not in called


async def test_a_chain_of_callbacks_ends_with_the_stop(pool):
    began = []

    def step():
        began.append(1)

    def again(_future):
        pool.submit(step).add_done_callback(again)

    async def agent():
        again(None)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(began) > 3)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    before = len(began)
    pool.submit(int).result(30)  # whatever was queued has had its turn
    assert len(began) == before


async def test_clean_up_may_register_callbacks(pool):
    called = threading.Event()

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            pool.submit(int).add_done_callback(lambda _: called.set())
            await asyncio.to_thread(called.wait, 30)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert called.is_set()


async def test_a_callback_that_the_runs_own_code_calls_is_a_plain_call():
    called = []

    async def agent():
        future = concurrent.futures.Future()
        future.add_done_callback(lambda _: called.append(stoppable.current_run().in_flight))
        future.set_result(1)
        future.add_done_callback(lambda _: called.append(stoppable.current_run().in_flight))

    await (await stoppable.spawn(agent)).result()
    assert called == [(), ()]


async def test_the_callbacks_of_a_run_that_completed_are_called_and_belong_to_the_run_around_it(pool):
    release, seen = threading.Event(), []

    async def child():
        pool.submit(release.wait, 30).add_done_callback(lambda _: seen.append(stoppable.current_run()))

    async def parent():
        await stoppable.call(child)
        child_completed.set()
        await asyncio.sleep(60)

    child_completed = asyncio.Event()
    alone = await stoppable.spawn(child)
    await alone.outcome()
    release.set()
    await until(lambda: seen)
    assert seen == [None]
    release.clear()
    handle = await stoppable.spawn(parent)
    await child_completed.wait()
    release.set()
    await until(lambda: len(seen) == 2)
    assert seen[1] is handle.run
    await handle.stop("immediate")
    await handle.outcome()


async def test_callbacks_of_asyncio_see_the_run_and_may_start_nothing_after_the_stop(caplog):
    seen = []
    future = asyncio.get_running_loop().create_future()

    def callback(_):
        seen.append(stoppable.current_run())
        subprocess.run(["true"], check=False)
        seen.append("ran")

    async def agent():
        future.add_done_callback(callback)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running" and future._callbacks)
    await handle.stop("immediate")
    await handle.outcome()
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        future.set_result(1)
        await until(lambda: seen)
    assert seen == [handle.run]


def _thread_pool_executor(initializer):
    pool = concurrent.futures.ThreadPoolExecutor(1, initializer=initializer)
    pool.submit(int)
    return pool.shutdown


def _multiprocessing_pool(initializer):
    pool = multiprocessing.pool.ThreadPool(1, initializer=initializer)
    pool.apply_async(int)
    return pool.terminate


@pytest.mark.parametrize("make", [_thread_pool_executor, _multiprocessing_pool])
async def test_an_initializer_is_in_flight_and_is_completed(make):
    began, release, closers, done = threading.Event(), threading.Event(), [], []

    def warm_up():
        began.set()
        release.wait(30)
        done.append(subprocess.run(["true"], check=False).returncode)

    async def agent():
        closers.append(make(warm_up))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    receipt = await handle.stop("immediate")
    assert any(name.endswith("warm_up") for name in receipt.in_flight)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert done == [0]  # a pool whose initializer fails is broken for everybody
    closers[0]()


async def test_a_pool_whose_thread_cannot_be_started_leaves_no_initializer_open(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise RuntimeError("can't start new thread")

    async def agent():
        name = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
        with monkeypatch.context() as patch:
            patch.setattr(threading, name, refuse)
            with pytest.raises(RuntimeError):
                concurrent.futures.ThreadPoolExecutor(1, initializer=lambda: None).submit(int)
        return stoppable.current_run().in_flight

    assert await (await stoppable.spawn(agent)).result() == ()


async def test_a_callback_of_a_library_is_called_after_the_stop_and_what_it_submits_is_skipped(pool, monkeypatch):
    """As joblib's callbacks, which submit the next call: those who wait for that are told."""
    began, release, results, effects = threading.Event(), threading.Event(), [], []
    is_users = user_code.is_users
    monkeypatch.setattr(user_code, "is_users", lambda function: function is not dispatch and is_users(function))

    def work():
        began.set()
        release.wait(30)

    def dispatch(_result):
        results.append(pool.submit(effects.append, 1))
        results.append(multiprocessing_pool.apply_async(effects.append, (1,)))
        threading.Thread(target=effects.append, args=(1,)).start()

    async def agent():
        multiprocessing_pool.apply_async(work, callback=dispatch)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    await handle.stop("immediate")
    release.set()
    assert (await handle.outcome()).status == "stopped"
    await until(lambda: len(results) == 2)
    for result in (results[0].result, results[1].get):
        with pytest.raises(concurrent.futures.CancelledError):
            result(30)
    assert effects == []
    assert multiprocessing_pool.apply(double, (2,)) == 4


async def test_a_callback_of_a_library_fails_as_ever(pool, monkeypatch, caplog):
    monkeypatch.setattr(user_code, "is_users", lambda _: False)
    called = threading.Event()

    def fails(_future):
        called.set()
        raise concurrent.futures.CancelledError("its own")

    async def agent():
        gate = threading.Event()
        pool.submit(gate.wait, 30).add_done_callback(fails)
        gate.set()
        await stoppable.to_thread(called.wait, 30)

    await (await stoppable.spawn(agent)).result()
    pool.submit(int).result(30)
    assert "its own" in caplog.text


class TestACallThatTheStopSkipped:
    """Its future: AgentStopped inside the stopped run, cancelled for everybody else."""

    @pytest.fixture(params=["instrumented", "executor of the loop", "our executor"])
    def executor(self, request):
        if request.param == "instrumented":
            made = concurrent.futures.ThreadPoolExecutor(1)
        else:
            stoppable.uninstrument()
            made = stoppable.ThreadPoolExecutor(1)
            if request.param == "executor of the loop":
                made = stoppable._engine.executors.LoopExecutor(1)
        with made:
            yield made

    async def test_is_cancelled_for_others_and_stopped_for_the_run(self, executor):
        release, futures, seen = threading.Event(), [], []
        executor.submit(release.wait, 30)

        async def prefetch():
            futures.append(executor.submit(lambda: "value"))
            inside = asyncio.wrap_future(futures[0])
            try:
                await inside
            except BaseException as error:
                seen.append(type(error))
                for ask in (futures[0].exception, futures[0].result):
                    try:
                        seen.append(type(ask(30)))
                    except BaseException as raised:
                        seen.append(type(raised))
                seen.append(futures[0].cancelled())
                raise

        handle = await stoppable.spawn(prefetch)
        await until(lambda: futures)
        outside = asyncio.wrap_future(futures[0])
        await handle.stop()
        release.set()
        assert (await handle.outcome()).status == "stopped"
        assert seen == [stoppable.AgentStopped] * 3 + [False]
        with pytest.raises(asyncio.CancelledError):
            await outside
        assert futures[0].cancelled()
        for ask in (futures[0].result, futures[0].exception):
            with pytest.raises(concurrent.futures.CancelledError):
                ask(30)

    @pytest.mark.parametrize("wait", [asyncio.wrap_future, lambda future: asyncio.to_thread(future.result, 30)])
    async def test_is_executed_for_another_run_that_waits_for_it(self, wait):
        """Run A fills a cache of futures, run B reads it (G4)."""
        release, futures = threading.Event(), []
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            executor.submit(release.wait, 30)

            async def prefetch():
                futures.append(executor.submit(lambda: stoppable.current_run().id))
                await asyncio.sleep(60)

            async def reader():
                return await wait(futures[0])

            one = await stoppable.spawn(prefetch)
            await until(lambda: futures)
            other = await stoppable.spawn(reader)
            await until(lambda: futures[0].call()._waiter is not None)
            await one.stop("immediate")
            release.set()
            assert (await one.outcome()).status == "stopped"
            assert await other.result() == other.id

    async def test_a_future_does_not_keep_the_arguments_of_its_call(self, pool):
        class Large:
            pass

        async def agent():
            large = Large()
            return pool.submit(lambda _: None, large), weakref.ref(large)

        future, large = await (await stoppable.spawn(agent)).result()
        future.result(30)
        await until(lambda: large() is None)

    async def test_is_skipped_if_the_other_run_is_stopped_too(self):
        release, futures, began = threading.Event(), [], []
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            executor.submit(release.wait, 30)

            async def prefetch():
                futures.append(executor.submit(began.append, 1))
                await asyncio.sleep(60)

            async def reader():
                await asyncio.wrap_future(futures[0])

            one = await stoppable.spawn(prefetch)
            await until(lambda: futures)
            other = await stoppable.spawn(reader)
            await until(lambda: futures[0].call()._waiter is not None)
            for handle in (one, other):
                await handle.stop("immediate")
            release.set()
            assert [(await handle.outcome()).status for handle in (one, other)] == ["stopped"] * 2
        assert began == []

    async def test_is_the_own_stop_of_another_run_that_was_stopped(self, executor):
        release, futures, seen = threading.Event(), [], []
        executor.submit(release.wait, 30)

        async def prefetch():
            futures.append(executor.submit(lambda: "value"))
            await asyncio.sleep(60)

        def reader():
            stoppable.current_run().stop("cooperative", "its own")
            try:
                futures[0].result(30)
            except stoppable.AgentStopped as stop:
                seen.append(stop)
                raise

        first = await stoppable.spawn(prefetch)
        await until(lambda: futures)
        second = await stoppable.spawn(reader)
        await until(lambda: second.status == "stopping")
        first.run.stop("cooperative")
        release.set()
        assert (await second.outcome()).status == "stopped"
        assert [stop.reason.message for stop in seen] == ["its own"]
        await first.stop("immediate")
        await first.outcome()


async def test_the_error_and_the_result_of_a_call_are_those_of_the_call(pool):
    async def agent():
        failed = pool.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            failed.result(30)
        return pool.submit(double, 2).result(30), type(failed.exception(30)), failed.cancelled()

    assert await (await stoppable.spawn(agent)).result() == (4, ValueError, False)
