"""Threads of libraries that a run leaves running are listed in its receipt."""

import asyncio
import concurrent.futures
import logging.handlers
import queue
import sys
import threading
import weakref

import pytest
from tests import worker_agents
from tests.waiting import until

import stoppable
from stoppable import _json
from stoppable._engine.instrumentation import threads


@pytest.fixture
def listeners():
    """Listeners that are stopped at the end, if nobody has before."""
    made = []

    def start():
        listener = logging.handlers.QueueListener(queue.Queue(), logging.NullHandler())
        listener.start()
        made.append(listener)
        return listener

    yield start
    for listener in made:
        if listener._thread is not None:
            listener.stop()


async def _stopped(body):
    """Return the receipt of an agent that does something and then waits to be stopped."""
    is_ready = asyncio.Event()

    async def agent():
        await body()
        is_ready.set()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await is_ready.wait()
    first = await handle.stop("immediate")
    assert first.library_threads == ()
    assert (await handle.outcome()).status == "stopped"
    return handle.run.receipt


async def test_a_thread_that_is_alive_at_the_end_is_listed_with_its_module_for_good(listeners):
    async def body():
        made.append(listeners())
        listeners().stop()  # which has ended by then

    made = []
    receipt = await _stopped(body)
    (name,) = receipt.library_threads
    assert name.endswith(" (logging.handlers)")
    made[0].stop()
    assert receipt.library_threads == (name,)
    assert receipt.in_flight == ()
    assert _json.load(stoppable.Receipt, _json.dump(receipt)) == receipt
    assert _json.dump(receipt)["libraryThreads"] == [name]


async def test_one_that_a_child_left_running_is_listed_with_the_run_around_it_too(listeners):
    async def child():
        listeners()

    async def body():
        await stoppable.call(child)
        await stoppable.call(child)

    assert len((await _stopped(body)).library_threads) == 2


async def test_what_others_started_and_what_is_ours_is_not_listed(listeners):
    async def body():
        with stoppable.detached():
            listeners()
        await asyncio.to_thread(int)  # on a thread of ours, which waits for the next call
        await stoppable.to_thread(int)

    listeners()
    assert (await _stopped(body)).library_threads == ()


async def test_an_idle_thread_of_a_pool_is_listed():
    pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mine")

    async def body():
        await asyncio.wrap_future(pool.submit(int))

    with pool:
        assert (await _stopped(body)).library_threads == ("mine_0 (concurrent.futures.thread)",)


async def test_no_more_than_twenty_are_named_each_in_a_line(listeners):
    async def body():
        for _ in range(23):
            listeners()

    names = (await _stopped(body)).library_threads
    assert len(names) == 21
    assert names[-1] == "and 3 more"


async def test_a_long_name_is_cut(listeners):
    thread = threading.Thread(target=threading.Event().wait, args=(0.01,), name="n" * 1000)

    async def body():
        threads.note_library_thread(thread, stoppable.current_run())
        assert [len(origin.label) for origin in threads._origins.values() if "nnn" in origin.label] == [120]

    await _stopped(body)


async def test_a_run_that_ended_by_itself_before_the_stop_was_delivered_lists_them(listeners):
    async def agent():
        listeners()
        stoppable.current_run().stop("cooperative")

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "completed"
    assert handle.run.receipt.too_late
    assert len(handle.run.receipt.library_threads) == 1


async def test_those_of_a_child_in_a_worker_process_are_told(tmp_path):
    path = tmp_path / "there"
    handle = await stoppable.spawn(worker_agents.listens_in_a_child, str(path), isolation="process")
    await until(path.exists, 30)
    (child,) = await until(lambda: handle.run.children, 30)  # the news of it may be on its way
    child.stop("immediate")
    await until(lambda: child.outcome is not None, 30)
    assert [name.rpartition(" (")[2] for name in child.receipt.library_threads] == ["logging.handlers)"]
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert handle.run.receipt.library_threads == ()  # the process took them along


async def test_threads_that_start_while_the_list_is_made_do_no_harm(monkeypatch):
    monkeypatch.setattr(threads, "_origins", weakref.WeakKeyDictionary())
    is_over = threading.Event()

    def start_more():
        while not is_over.is_set():
            made = [threading.Thread() for _ in range(100)]
            threads._origins.update(dict.fromkeys(made, origin))

    async with stoppable.open_run("busy") as run:
        origin = threads._Origin(weakref.ref(run), frozenset(), "x", keeps_pool=False)
        kept = [threading.Thread() for _ in range(500)]
        threads._origins.update(dict.fromkeys(kept, origin))
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        other = threading.Thread(target=start_more)
        other.start()
        try:
            for _ in range(200):
                assert threads.library_threads_in(run) == ()
        finally:
            sys.setswitchinterval(interval)
            is_over.set()
            other.join()
