"""A store that does not answer harms no run, and a worker that is given up ends its runs and changes nothing."""

import asyncio

import pytest
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable.errors import Fenced, StoreError
from stoppable.records import StopIntent
from stoppable.stores.memory import MemoryStore
from stoppable.stores.reply import Reply


class Faulty:
    """A store of which some calls fail, or are never answered."""

    def __init__(self, inner):
        self._inner = inner
        self.failing = set()
        self.silent = set()
        self.calls = []

    def __getattr__(self, name):
        method = getattr(self._inner, name)
        if not callable(method):
            return method

        def call(*args, **kwargs):
            self.calls.append(name)
            if name in self.silent:
                return Reply()
            if name in self.failing:
                return Reply.of(self._fail)
            return method(*args, **kwargs)

        return call

    @staticmethod
    def _fail():
        raise StoreError("the disk is full: make room")


async def work():
    stoppable.emit("one")
    stoppable.emit("two")
    return "done"


async def forever():
    await stoppable.sleep(3600)


async def test_an_outage_of_the_store_harms_no_run_and_loses_nothing(store, caplog):
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=0.3) as supervisor:
        faulty.failing = {"append", "finish"}
        handle = await supervisor.start(work)
        await until(lambda: handle.status == "completed")
        kept = asyncio.create_task(handle.result())
        await until(lambda: faulty.calls.count("finish") > 1)
        assert not kept.done()
        assert (await supervisor.get(handle.id)).status == "pending"
        faulty.failing = set()
        assert await kept == "done"
        events = [event async for event in handle.events()]
        assert [event.data.get("name") for event in events if event.type == "progress"] == ["one", "two"]
        assert events[-1].data["status"] == "completed"
    assert "the disk is full" in caplog.text


async def test_a_start_that_the_store_refuses_does_not_run(store):
    faulty = Faulty(store)
    async with Supervisor(faulty) as supervisor:
        faulty.failing = {"register"}
        with pytest.raises(StoreError, match="make room"):
            await supervisor.start(forever, run_id="never")
        assert supervisor._desk.recorder.logs == {}


async def test_a_worker_that_cannot_renew_its_lease_ends_its_runs_before_others_may_give_them_up(store):
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=0.3) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        faulty.silent = {"heartbeat"}
        outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", "policy")
    assert "fenced" in outcome.reason.message


class Time:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


async def test_a_worker_that_was_given_up_ends_its_runs_and_its_reports_come_too_late():
    time = Time()
    store = MemoryStore(clock=time)
    async with Supervisor(store, ttl=0.3) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        old = supervisor._desk.lease.worker
        time.now += 60  # as if this process had been frozen for a minute
        [record] = store.reap().result()
        assert (record.id, record.status) == (handle.id, "lost")
        with pytest.raises(Fenced):
            store.append(handle.id, 1, []).result()
        assert (await handle.outcome()).status == "stopped"  # it knows better, but too late
        await until(lambda: supervisor._desk.lease.worker != old)
        record = await supervisor.get(handle.id)
        assert record.status == "lost"
        events = store.read(handle.id).result()
        assert [event.type for event in events[-2:]] == ["done", "late"]
        assert await (await supervisor.start(work)).result() == "done"  # with a new lease


async def test_the_runs_of_a_worker_that_gave_its_lease_back_are_ended_by_the_next():
    store = MemoryStore()
    first = Supervisor(store, ttl=0.3)
    await first.__aenter__()
    left = await first.start(forever)
    asked = await first.start(forever)
    await until(lambda: left.status == asked.status == "running")
    first._desk.lease.close()  # as if it had died here
    store.request_stop(asked.id, StopIntent()).result()
    async with Supervisor(store, ttl=0.3) as second:
        async with asyncio.timeout(5):
            while not all(store.get(one.id).result().over for one in (left, asked)):
                await asyncio.sleep(0.01)
        assert [(await second.get(one.id)).status for one in (left, asked)] == ["failed", "stopped"]
        assert (await second.get(left.id)).outcome.error.type == "WorkerDied"
    await first.close()
