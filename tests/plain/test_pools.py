"""Pools of processes, and the thread pool of multiprocessing."""

import asyncio
import concurrent.futures
import multiprocessing
import multiprocessing.pool
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.instrumentation.threads import library_threads_in

from .process_bodies import double, touch_and_die, touch_and_sleep, touch_and_sleep_of

SPAWN = multiprocessing.get_context("spawn")


def _pool(workers=1):
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=SPAWN)


async def test_the_processes_of_a_pool_end_with_the_run_that_made_it(tmp_path):
    there = tmp_path / "there"

    async def agent():
        with _pool() as pool:
            await asyncio.get_running_loop().run_in_executor(pool, touch_and_sleep, str(there))

    handle = await stoppable.spawn(agent)
    await until(there.exists, 30)
    receipt = await handle.stop("immediate")
    assert set(receipt.in_flight) == {"spawn:touch_and_sleep", *(n for n in receipt.in_flight if "Process" in n)}
    assert len(receipt.in_flight) == 2
    outcome = await handle.outcome()
    assert outcome.status == "stopped"


async def test_of_a_shared_pool_only_the_call_takes_part(tmp_path):
    there = tmp_path / "there"
    with _pool() as pool:
        assert pool.submit(double, 1).result() == 2

        async def agent():
            await asyncio.get_running_loop().run_in_executor(pool, touch_and_sleep, str(there), 0.5)

        handle = await stoppable.spawn(agent)
        await until(there.exists, 30)
        receipt = await handle.stop("immediate")
        assert receipt.in_flight == ("spawn:touch_and_sleep",)
        await until(lambda: handle.run.body_end is not None)
        assert handle.status == "stopping"
        assert (await handle.outcome()).status == "stopped"
        assert pool.submit(double, 2).result() == 4  # nobody has touched its processes


async def test_a_child_uses_the_pool_of_its_parent():
    async def child(pool):
        return pool.submit(double, 3).result()

    async def parent():
        with _pool() as pool:
            return await stoppable.call(child, pool)

    assert await (await stoppable.spawn(parent)).result() == 6


async def test_a_call_that_has_not_begun_is_taken_back_at_cancel(tmp_path):
    there = tmp_path / "there"
    futures = []
    with _pool() as pool:

        async def agent():
            futures.append(pool.submit(touch_and_sleep, str(there), 0.5))
            futures.extend(pool.submit(double, number) for number in range(20))
            await asyncio.sleep(60)

        handle = await stoppable.spawn(agent)
        await until(there.exists, 30)
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
    assert futures[-1].cancelled()


@pytest.mark.parametrize(("mode", "fate"), [("immediate", "cancelled"), ("kill", "killed")])
async def test_a_call_that_dies_with_its_process_was_cut_and_one_that_had_not_begun_is_skipped(tmp_path, mode, fate):
    there = tmp_path / "there"

    async def agent():
        with _pool() as pool:
            first = pool.submit(touch_and_sleep, str(there), ignores_term=mode == "kill")
            calls = [first, *(pool.submit(double, number) for number in range(5))]
            await asyncio.gather(*map(asyncio.wrap_future, calls))

    handle = await stoppable.spawn(agent)
    await until(there.exists, 30)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    fates = [
        (node.name, node.fate) for node in handle.run.receipt.entries if node.name in {"touch_and_sleep", "double"}
    ]
    assert fates == [("touch_and_sleep", fate), *[("double", "skipped")] * 5]


async def test_a_pool_that_breaks_after_a_call_was_cancelled_ends_the_others(tmp_path):
    """In 3.11 and 3.12 its thread fails at the cancelled future, and nobody hears of the calls after that one."""
    there, go = tmp_path / "there", tmp_path / "go"

    async def agent():
        with _pool() as pool:
            calls = [pool.submit(touch_and_die, str(there), str(go)), *(pool.submit(double, n) for n in range(9))]
            await until(there.exists, 30)
            assert calls[5].cancel()
            go.touch()
            done, _ = await stoppable.to_thread(concurrent.futures.wait, calls[:5] + calls[6:], 30)
            return len(done), stoppable.current_run().in_flight

    count, in_flight = await (await stoppable.spawn(agent)).result()
    assert (count, [name for name in in_flight if "double" in name]) == (9, [])


async def test_a_pool_that_breaks_by_itself_has_finished_its_calls(tmp_path):
    there = tmp_path / "there"

    async def agent():
        with _pool() as pool:
            await asyncio.wrap_future(pool.submit(touch_and_die, str(there), str(tmp_path / "go")))

    handle = await stoppable.spawn(agent)
    await until(there.exists, 30)
    await handle.stop()
    (tmp_path / "go").touch()
    assert (await handle.outcome()).status == "failed"  # before the stop was delivered
    assert [node.fate for node in handle.run.receipt.entries if node.name == "touch_and_die"] == ["finished"]


async def test_after_the_stop_nothing_is_submitted_to_a_pool():
    with _pool() as pool:

        async def agent():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass
            pool.submit(double, 1)

        handle = await stoppable.spawn(agent)
        await until(lambda: handle.status == "running")
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
        assert pool._queue_count == 0


async def test_a_pool_that_was_shut_down_refuses_as_ever():
    pool = _pool()
    pool.shutdown()

    async def agent():
        with pytest.raises(RuntimeError):
            pool.submit(double, 1)
        return stoppable.current_run().in_flight

    assert await (await stoppable.spawn(agent)).result() == ()


_POOL = """
import asyncio, multiprocessing, os, sys
import stoppable
from process_bodies import touch_and_sleep

stoppable.instrument()
pools = []

async def agent():
    pools.append(multiprocessing.get_context("spawn").Pool(1))
    pools[0].apply_async(touch_and_sleep, (sys.argv[1],))
    await asyncio.sleep(60)

async def main():
    handle = await stoppable.spawn(agent)
    while not os.path.exists(sys.argv[1]):
        await asyncio.sleep(0.01)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    keeper = pools[0]._worker_handler
    while keeper.is_alive():
        await asyncio.sleep(0.01)
    print(outcome.status, [process.is_alive() for process in pools[0]._pool])
    sys.stdout.flush()
    os._exit(0)  # a pool whose process was ended inside a lock cannot be closed, whoever ended it

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_pool_of_multiprocessing_starts_no_process_anew_after_the_stop(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_POOL)
    command = [sys.executable, str(script), str(tmp_path / "there")]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert (done.stdout, "Traceback" in done.stderr) == ("stopped []\n", False)


@pytest.fixture
def shared_pool():
    pool = SPAWN.Pool(1)
    yield pool
    pool.terminate()
    pool.join()


MULTIPROCESSING_CALLS = {
    "apply_async": lambda pool, *args: pool.apply_async(touch_and_sleep, args),
    "map_async": lambda pool, *args: pool.starmap_async(touch_and_sleep, [args]),
    "imap": lambda pool, *args: pool.imap(touch_and_sleep_of, [args]),
    "imap_unordered": lambda pool, *args: pool.imap_unordered(touch_and_sleep_of, [args], chunksize=2),
}


@pytest.mark.parametrize("call", MULTIPROCESSING_CALLS.values(), ids=MULTIPROCESSING_CALLS)
async def test_of_a_shared_pool_of_multiprocessing_the_call_takes_part(call, shared_pool, tmp_path):
    there = tmp_path / "there"

    async def agent():
        call(shared_pool, str(there), 0.5)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(there.exists, 30)
    receipt = await handle.stop("immediate")
    assert len(receipt.in_flight) == 1
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    assert (await handle.outcome()).status == "stopped"
    assert shared_pool.apply(double, (2,)) == 4  # nobody has touched its processes


async def test_a_call_in_a_shared_pool_leaves_nothing_open(shared_pool):
    def agent():
        assert shared_pool.map(double, []) == []
        assert shared_pool.apply(double, (3,)) == 6
        with pytest.raises(TypeError):
            shared_pool.apply_async(double, no_such_option=1)
        ended = multiprocessing.get_context("spawn").Pool(1)
        assert ended.apply(double, (1,)) == 2
        ended.terminate()
        ended.join()
        with pytest.raises(ValueError, match="not running"):
            ended.apply(double, (1,))
        shared_pool.close()
        with pytest.raises(ValueError, match="not running"):
            shared_pool.apply_async(double, (1,))
        return stoppable.current_run().in_flight

    assert not any("double" in name for name in await (await stoppable.spawn(agent)).result())


async def test_a_call_in_a_shared_pool_that_is_terminated_is_over(shared_pool, tmp_path):
    there = tmp_path / "there"

    async def agent():
        shared_pool.apply_async(touch_and_sleep, (str(there),))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(there.exists, 30)
    shared_pool.terminate()
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"


async def test_after_the_stop_nothing_is_submitted_to_a_pool_of_multiprocessing(shared_pool):
    refused = []

    async def agent():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        try:
            shared_pool.apply_async(double, (1,))
        except stoppable.AgentStopped:
            refused.append(True)
            raise

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert refused


async def test_the_calls_of_a_thread_pool_take_part():
    began, release, effects = threading.Event(), threading.Event(), []

    def work(number):
        began.set()
        release.wait(30)
        effects.append(number)
        return number

    def agent():
        with multiprocessing.pool.ThreadPool(1) as pool:
            results = [pool.apply_async(work, (0,)), pool.map_async(work, range(1, 9), chunksize=1)]
            listed.extend(library_threads_in(stoppable.current_run()))
            while not began.wait(30):
                pass
            for result in results:
                result.wait(30)
            return [result.successful() for result in results]

    listed = []
    handle = await stoppable.spawn(agent)
    await until(began.is_set)
    receipt = await handle.stop()
    assert len(receipt.in_flight) == 1
    release.set()
    outcome = await handle.outcome()
    assert (outcome.status, effects, outcome.result) == ("stopped", [0], [True, False])
    assert listed


def test_outside_a_run_pools_are_as_ever():
    with multiprocessing.pool.ThreadPool(1) as pool:
        assert pool.map(double, range(3)) == [0, 2, 4]
        assert list(pool.imap(double, range(3))) == [0, 2, 4]
