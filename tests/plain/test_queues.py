"""A thread that takes its work from a queue works for the run that put it there."""

import asyncio
import concurrent.futures
import queue
import subprocess
import threading

import pytest
from tests.waiting import until

import stoppable


class Service:
    """A part of an app that works for all of its agents, on a thread which the first of them starts."""

    def __init__(self, timeout=None):
        self.jobs = queue.Queue()
        self.timeout = timeout
        self.thread = None

    def submit(self, function):
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, name="service", daemon=True)
            self.thread.start()
        future = concurrent.futures.Future()
        self.jobs.put((function, future))
        return asyncio.wrap_future(future)

    def work(self):
        while True:
            try:
                function, future = self.jobs.get(timeout=self.timeout)
            except queue.Empty:
                continue
            if function is None:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

    def close(self):
        self.jobs.put((None, None))
        self.thread.join(30)
        assert not self.thread.is_alive()


@pytest.fixture(params=[None, 0.01], ids=["waits", "polls"])
def service(request):
    made = Service(request.param)
    yield made
    made.close()


def command():
    return subprocess.run(["true"], check=False).returncode


async def test_a_worker_that_one_run_started_and_another_uses_outlives_the_first(service):
    first_served, go_on, second_served = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first():
        assert await service.submit(command) == 0
        first_served.set()
        await asyncio.sleep(60)

    async def second():
        assert await service.submit(command) == 0
        second_served.set()
        await go_on.wait()
        return [await service.submit(command) for _ in range(3)]

    one = await stoppable.spawn(first)
    await first_served.wait()
    other = await stoppable.spawn(second)
    await second_served.wait()
    await one.stop("immediate")
    assert (await one.outcome()).status == "stopped"
    assert one.run.receipt.library_threads == ("service (tests.plain.test_queues)",)
    go_on.set()
    assert await other.result() == [0, 0, 0]
    assert await service.submit(command) == 0  # and outside runs


async def test_a_worker_that_waits_when_its_run_is_stopped_serves_whoever_comes_later():
    service, served = Service(), threading.Event()

    async def first():
        assert await service.submit(command) == 0
        served.set()
        await asyncio.sleep(60)

    one = await stoppable.spawn(first)
    await until(lambda: served.is_set() and "thread:service" not in one.run.in_flight)
    await one.stop("immediate")
    assert (await one.outcome()).status == "stopped"
    assert await service.submit(command) == 0

    async def second():
        return await service.submit(command)

    assert await (await stoppable.spawn(second)).result() == 0
    service.close()


async def test_a_job_is_in_flight_in_the_run_that_made_it_and_a_stop_refuses_its_effects(service):
    began, release, seen = threading.Event(), threading.Event(), []

    def job():
        seen.append(stoppable.current_run())
        began.set()
        release.wait(30)
        return command()

    async def owner():
        await service.submit(int)
        await asyncio.sleep(60)

    async def user():
        result = service.submit(job)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append((await asyncio.gather(result, return_exceptions=True))[0])
            raise

    one = await stoppable.spawn(owner)
    await until(lambda: service.thread is not None)
    other = await stoppable.spawn(user)
    await until(began.is_set)
    receipt = await other.stop("immediate")
    assert receipt.in_flight == ("thread:service",)
    release.set()
    assert (await other.outcome()).status == "stopped"
    assert seen[0] is other.run
    assert isinstance(seen[1], concurrent.futures.CancelledError | asyncio.CancelledError)
    assert service.thread.is_alive()
    assert await service.submit(command) == 0
    await one.stop("immediate")
    assert (await one.outcome()).status == "stopped"


async def test_the_items_of_a_stopped_run_are_worked_off_before_it_is_stopped_and_start_nothing():
    jobs, results = queue.Queue(), []
    began, releases = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def work():
        while (number := jobs.get()) is not None:
            began[number].set()
            releases[number].wait(30)
            try:
                results.append((number, command()))
            except concurrent.futures.CancelledError:
                results.append((number, "refused"))

    async def agent():
        for number in range(3):
            jobs.put(number)
        threading.Thread(target=work, name="worker", daemon=True).start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(began[0].is_set)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:worker",)
    await until(lambda: handle.run.body_end is not None)
    for each, release in zip(began, releases, strict=True):
        await until(each.is_set)
        assert handle.status == "stopping"
        release.set()
    assert (await handle.outcome()).status == "stopped"
    assert results == [(number, "refused") for number in range(3)]
    jobs.put(None)


async def test_a_thread_that_uses_a_queue_as_a_timer_stays_with_its_run(clock):
    bell, ticks, release = queue.Queue(), [], threading.Event()

    def tick():
        while not release.is_set():
            try:
                bell.get(timeout=0.001)
            except queue.Empty:
                ticks.append(stoppable.current_run())

    async def agent():
        threading.Thread(target=tick, name="ticks").start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: ticks)
    receipt = await handle.stop("immediate")
    assert receipt.in_flight == ("thread:ticks",)
    await until(lambda: handle.run.body_end is not None)
    assert handle.status == "stopping"
    release.set()
    assert (await handle.outcome()).status == "stopped"
    assert set(ticks) == {handle.run}


async def test_while_its_run_is_live_a_worker_handles_what_comes_from_outside_in_the_run():
    jobs, seen = queue.Queue(), []

    def listen():
        while jobs.get() is not None:
            seen.append(stoppable.current_run())

    async def agent():
        threading.Thread(target=listen).start()
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    jobs.put("from outside")
    await until(lambda: seen)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    jobs.put("from outside")
    await until(lambda: len(seen) == 2)
    jobs.put(None)
    assert seen == [handle.run, None]


async def test_a_run_inside_a_worker_keeps_its_own_scope():
    jobs, seen = queue.Queue(), []
    jobs.put("an item")

    def inner():
        jobs.get()
        seen.append(stoppable.current_run().name)

    async def agent():
        thread = threading.Thread(target=stoppable.sync.call, args=(inner,))
        thread.start()
        await stoppable.to_thread(thread.join)

    await (await stoppable.spawn(agent)).result()
    assert seen == ["inner"]


async def test_a_queue_that_refuses_an_item_forgets_it():
    jobs = queue.Queue(1)

    def agent():
        jobs.put("same")
        with pytest.raises(queue.Full):
            jobs.put("another", block=False)
        return jobs.get()

    assert await (await stoppable.spawn(agent)).result() == "same"
    assert jobs._stoppable_runs == {}


def test_outside_runs_queues_are_as_ever():
    for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
        jobs = kind()
        jobs.put(1)
        jobs.put(1)
        assert (jobs.get(), jobs.get_nowait()) == (1, 1)
        with pytest.raises(queue.Empty):
            jobs.get(block=False)
        assert not hasattr(jobs, "_stoppable_runs")
