"""A store that does not answer harms no run, and a worker that is given up ends its runs and changes nothing."""

import asyncio
import contextlib
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import Policy, Supervisor
from stoppable.errors import Fenced, InvalidArgument, StoreError
from stoppable.records import RunRecord, StopIntent, StopRequest
from stoppable.stores.base import Intent, StoreFuture, WorkerInfo, settle
from stoppable.stores.memory import MemoryStore
from stoppable.stores.sqlite import SqliteStore
from stoppable.supervisor import lease
from stoppable.testing import FakeClock


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
                return StoreFuture()
            if name in self.failing:
                return StoreFuture.of(self._fail)
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
    async with Supervisor(faulty, ttl=3) as supervisor:
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
        assert supervisor._core.writer.logs == {}


@pytest.mark.parametrize("is_stopped", [True, False])
async def test_a_start_that_failed_although_the_store_has_the_run_leaves_no_run_that_nobody_executes(store, is_stopped):
    """The connection was lost during the commit: a stop of the run would be accepted, and would wait for ever."""
    faulty, began = Faulty(store), []
    async with Supervisor(faulty, ttl=3) as supervisor:
        register = faulty._inner.register

        def lose_the_answer(*args):
            register(*args)
            return StoreFuture.of(Faulty._fail)

        faulty._inner.register = lose_the_answer
        with pytest.raises(StoreError, match="make room"):
            await supervisor.start(began.append, 1, run_id="unconfirmed")
        if is_stopped:
            await supervisor.stop("unconfirmed", reason="enough", wait=0)
        outcome = await supervisor.handle("unconfirmed").outcome()
        assert (outcome.status, began) == ("stopped", [])
        assert outcome.reason.message == ("enough" if is_stopped else "its start failed")
        assert (await supervisor.get("unconfirmed")).receipt.final


@pytest.mark.parametrize("was_stored", [True, False])
async def test_a_failed_start_that_is_repeated_is_executed_once_or_ends_and_is_never_ended_while_it_runs(
    store, was_stored
):
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=3) as supervisor:
        register = faulty._inner.register

        def fail(*args):
            if was_stored:
                register(*args)
            return StoreFuture.of(Faulty._fail)

        faulty._inner.register = fail
        with pytest.raises(StoreError, match="make room"):
            await supervisor.start(forever, run_id="again")
        faulty._inner.register = register
        handle = await supervisor.start(forever, run_id="again")
        if was_stored:  # the store takes the repeat for the same start
            assert (await handle.outcome()).reason.message == "its start failed"
            return
        beats = faulty.calls.count("heartbeat")
        await until(lambda: faulty.calls.count("heartbeat") > beats + 2)
        assert (await supervisor.get("again")).status == "running"
        assert supervisor._core._unconfirmed == {}
        await supervisor.stop("again", "immediate")
        assert (await handle.outcome()).status == "stopped"


async def test_a_start_that_is_being_repeated_is_not_ended_by_a_look_that_came_too_early(store):
    faulty, answer = Faulty(store), StoreFuture()
    async with Supervisor(faulty, ttl=30) as supervisor:
        faulty.failing = {"register"}
        with pytest.raises(StoreError, match="make room"):
            await supervisor.start(forever, run_id="again")
        faulty.failing = set()
        faulty._inner.register, register = (lambda *args: answer), faulty._inner.register
        starting = asyncio.create_task(supervisor.start(forever, run_id="again"))
        await until(lambda: supervisor._core._starting)
        [log] = supervisor._core._starting
        registration = await register(RunRecord(id="again", name="forever", worker=log.worker), "again")
        supervisor._core._look_for_unconfirmed()
        await store.get("again")  # the look before it was answered too
        settle([(answer, registration, None)])
        handle = await starting
        supervisor._core._look_for_unconfirmed()
        assert (await supervisor.get("again")).status in {"pending", "running"}
        await supervisor.stop("again", "immediate")
        assert (await handle.outcome()).status == "stopped"


async def test_a_worker_that_cannot_renew_its_lease_ends_its_runs_before_others_may_give_them_up(store):
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=3) as supervisor:
        handle = await supervisor.start(forever)
        faulty.silent = {"heartbeat"}
        outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", "policy")
    assert "fenced" in outcome.reason.message


async def test_a_run_whose_worker_was_fenced_while_it_was_registered_never_begins(store):
    """Its worker is given back once its other runs are over, which says that this one is dead too."""
    faulty, began, answer = Faulty(store), [], StoreFuture()

    async with Supervisor(faulty, ttl=30) as supervisor:
        faulty._inner.register, register = (lambda *args: answer), faulty._inner.register
        starting = asyncio.create_task(supervisor.start(began.append, 1, run_id="late"))
        await until(lambda: "register" in faulty.calls)
        core = supervisor._core
        core.lease._lose("the store has not answered in time")
        [log] = core._starting
        record = RunRecord(id="late", name="agent", worker=log.worker)
        settle([(answer, await register(record, "late"), None)])
        outcome = await (await starting).outcome()
    assert (outcome.status, outcome.reason.message, began) == ("stopped", "its worker is fenced", [])


async def test_a_worker_that_was_fenced_keeps_its_lock_until_its_runs_are_over(tmp_path):
    """Its lock shows that they may be alive; kept for ever, each outage would cost descriptors."""
    store = SqliteStore(tmp_path / "runs.db")
    faulty = Faulty(store)
    let_go = threading.Event()
    async with Supervisor(faulty, ttl=3) as supervisor:
        handle = await supervisor.start(let_go.wait, isolation="thread", policy=Policy(kill=30))
        fenced = supervisor._core.lease.worker
        faulty.failing = {"heartbeat"}
        await until(lambda: handle.run.token.stopped)
        faulty.failing = set()
        beats = faulty.calls.count("heartbeat")
        await until(lambda: faulty.calls.count("heartbeat") > beats + 3)
        assert supervisor._core.lease.worker != fenced
        lock = tmp_path / "runs.db-workers" / f"{fenced}.lock"
        assert len(store.inherited) == 2
        assert lock.exists()
        let_go.set()
        await until(lambda: len(store.inherited) == 1 and not lock.exists())
        assert (await handle.outcome()).status == "stopped"


@contextlib.asynccontextmanager
async def leased(monkeypatch):
    """Give a clock that leases follow too, a store that can fail, the lease of 30 seconds, and a run."""
    faulty = Faulty(MemoryStore())
    with FakeClock() as time:
        monkeypatch.setattr(lease, "boot_clock", time.now)
        async with Supervisor(faulty, ttl=30) as supervisor:
            handle = await supervisor.start(forever)
            await until(lambda: handle.status == "running")
            yield time, faulty, supervisor._core.lease, handle
            faulty.silent = set()


async def test_a_worker_is_fenced_while_its_lease_lasts_and_no_sooner_than_it_must(monkeypatch):
    """G15: a kill takes two seconds, so a quarter of the lease is left for it."""
    async with leased(monkeypatch) as (time, faulty, _, handle):
        time.advance(9.0)
        faulty.silent = {"heartbeat"}
        time.advance(13.0)
        assert handle.run.token.stopped is False
        time.advance(1.0)
        assert handle.run.token.stopped is True
        assert (await handle.outcome()).reason.message == "its worker is fenced"


async def test_a_lease_that_is_renewed_late_but_in_time_fences_nobody(monkeypatch):
    async with leased(monkeypatch) as (time, faulty, its, handle):
        faulty.failing = {"heartbeat"}
        time.advance(14.0)
        assert its.is_current
        time.advance(3.0)
        assert not its.is_current
        faulty.failing = set()
        time.advance(300.0)
        assert its.is_current
        assert handle.run.token.stopped is False


class Time:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


async def test_a_worker_that_was_given_up_ends_its_runs_and_its_reports_come_too_late():
    time = Time()
    store = MemoryStore(clock=time)
    async with Supervisor(store, ttl=3) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        old = supervisor._core.lease.worker
        time.now += 60  # as if this process had been frozen for a minute
        store.reap().result()
        assert store.get(handle.id).result().status == "lost"
        with pytest.raises(Fenced):
            store.append(handle.id, 1, []).result()
        assert (await handle.outcome()).status == "stopped"  # it knows better, but too late
        await until(lambda: supervisor._core.lease.worker != old)
        record = await supervisor.get(handle.id)
        assert record.status == "lost"
        events = store.read(handle.id).result()
        assert [event.type for event in events[-2:]] == ["done", "late"]
        assert await (await supervisor.start(work)).result() == "done"  # with a new lease


async def test_a_stop_that_comes_with_its_wakeup_is_delivered_without_reading_the_store():
    store = MemoryStore()
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=3600) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        faulty.failing = {"intents", "heartbeat"}
        store.request_stop(StopRequest(target=handle.id)).result()  # as another process does
        async with asyncio.timeout(30):
            assert (await handle.outcome()).status == "stopped"


async def test_a_wakeup_of_a_former_lease_reads_the_stops_of_the_new_one():
    faulty = Faulty(MemoryStore())
    async with Supervisor(faulty, ttl=3600) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        faulty.calls.clear()
        supervisor._core.lease._on_wake("former", [Intent(run_id=handle.id, stop=StopIntent())])
        assert "intents" in faulty.calls
        assert handle.status == "running"


async def test_the_runs_of_a_worker_that_gave_its_lease_back_are_ended_by_the_next():
    store = MemoryStore()
    first = Supervisor(store, ttl=30)
    await first.__aenter__()
    left = await first.start(forever)
    asked = await first.start(forever)
    await until(lambda: left.status == asked.status == "running")
    first._core.lease.close()  # as if it had died here
    store.request_stop(StopRequest(target=asked.id)).result()
    async with Supervisor(store, ttl=3) as second:
        async with asyncio.timeout(30):
            while not all(store.get(one.id).result().over for one in (left, asked)):
                await asyncio.sleep(0.01)
        assert [(await second.get(one.id)).status for one in (left, asked)] == ["failed", "stopped"]
        assert (await second.get(left.id)).outcome.error.type == "WorkerLost"
    await first.close()


async def test_all_runs_of_a_dead_worker_are_ended_at_once_however_many():
    store = MemoryStore()
    _left_behind(store, 350)
    with FakeClock() as time:
        async with Supervisor(store):
            time.advance(0)
            assert store.counts().result() == {"failed": 350}


async def test_no_heartbeat_forgets_less_than_there_is_to_forget():
    store = MemoryStore()
    _left_behind(store, 2500)
    while store.reap().result():
        pass
    with FakeClock() as time:
        async with Supervisor(store, keep_days=0):
            time.advance(10)
            assert store.counts().result() == {}


async def test_a_store_that_cannot_forget_says_so(caplog):
    faulty = Faulty(MemoryStore())
    faulty.failing = {"purge"}
    with FakeClock() as time:
        async with Supervisor(faulty, keep_days=1):
            time.advance(10)
    assert "could not be deleted: the disk is full" in caplog.text


def _left_behind(store, count):
    store.open_worker(WorkerInfo(id="dead"), 30).result()
    for number in range(count):
        store.register(RunRecord(id=str(number), name="left", worker="dead"), "left").result()
    store.close_worker("dead").result()


async def test_a_run_that_cannot_be_kept_is_tried_again_with_the_next_heartbeat_and_told_of_once(caplog):
    """Not with every event: a full disk would fill the log as well, and each try sends all that waits."""
    faulty = Faulty(MemoryStore())
    with FakeClock() as time:
        async with Supervisor(faulty, ttl=30) as supervisor:

            async def chatty():
                for step in range(50):
                    stoppable.emit("step", number=step)
                    await asyncio.sleep(0)
                return "done"

            faulty.failing = {"append", "finish"}
            handle = await supervisor.start(chatty)
            await until(lambda: handle.status == "completed")
            time.advance(1)
            assert faulty.calls.count("append") == 1
            time.advance(24)
            assert faulty.calls.count("append") + faulty.calls.count("finish") == 1 + 2
            assert caplog.text.count("is not stored for now") == 1
            faulty.failing = set()
            time.advance(10)
            assert (await supervisor.get(handle.id)).status == "completed"
            assert len([each async for each in handle.events() if each.type == "progress"]) == 50


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ttl": 0}, "ttl is 0: use a positive number"),
        ({"ttl": float("nan")}, "ttl is nan: use a number of seconds"),
        ({"keep_days": -1}, "keep_days is -1: use a number of days"),
        ({"keep_days": "30"}, "keep_days is '30': use a number of days"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(InvalidArgument, match=says):
        Supervisor(**settings)
