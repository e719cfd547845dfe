"""G15: every terminal write bumps the epoch; whoever writes with the old one changes nothing."""

import asyncio

import pytest

import stoppable
from stoppable import Supervisor
from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Status
from stoppable._engine.processes.table import boot_clock
from stoppable.errors import Fenced
from stoppable.records import Draft, EventType, OutcomeRecord
from stoppable.stores.memory import MemoryStore
from stoppable.stores.sqlite import SqliteStore

DEADLINE = 30
TTL = 9.0  # a heartbeat every three seconds, and a lease that a busy machine does not let run out


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")


async def completes():
    return "done"


async def fails():
    raise ValueError("no")


async def waits():
    await stoppable.sleep(60)


@pytest.mark.parametrize(("agent", "status"), [(completes, "completed"), (fails, "failed"), (waits, "stopped")])
async def test_every_end_bumps_the_epoch_and_fences_the_one_before(agent, status, store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(agent)
        if status == "stopped":
            await handle.stop()
        await handle.outcome()
        record = await supervisor.get(handle.id)
        assert (record.status, record.epoch) == (status, 2)
        await unchanged_by_a_late_writer(store, record, epoch=1)


async def unchanged_by_a_late_writer(store, record, epoch):
    receipt = Receipt(run_id=record.id, answer=Answer.ACCEPTED, status=Status.STOPPING)
    for late in (
        lambda: store.append(record.id, epoch, [Draft(type=EventType.PROGRESS)]),
        lambda: store.append(record.id, epoch, [Draft(type=EventType.STATUS, data={"status": "running"})]),
        lambda: store.acknowledge(record.id, epoch, Mode.KILL, receipt),
    ):
        with pytest.raises(Fenced):
            await late()
    for status in (Status.COMPLETED, Status.FAILED, Status.STOPPED, Status.LOST):
        kept = await store.finish(record.id, epoch, OutcomeRecord(status=status, result="late"), receipt)
        assert (kept.status, kept.outcome, kept.receipt) == (record.status, record.outcome, record.receipt)
    after = await store.get(record.id)
    assert (after.epoch, after.outcome, after.ended_at) == (record.epoch, record.outcome, record.ended_at)
    events = await store.read(record.id)
    assert [event.type for event in events[-4:]] == [EventType.LATE] * 4


async def test_a_worker_that_lost_its_lease_changes_nothing_any_more_and_its_runs_are_ended(tmp_path):
    """Its run is lost for everybody; when it notices it kills the run, and that is told as a late end."""
    reaper = SqliteStore(tmp_path / "runs.db", lease_clock=lambda: boot_clock() + 1000)  # for which the lease is over
    async with Supervisor(SqliteStore(tmp_path / "runs.db"), ttl=TTL) as frozen:
        handle = await frozen.start(waits)
        async with asyncio.timeout(DEADLINE):
            while (await frozen.get(handle.id)).status != "running":
                await asyncio.sleep(0.005)
        reaper.open()
        try:
            (lost,) = await reaper.reap()
            assert (lost.id, lost.status, lost.epoch) == (handle.id, "lost", 2)
            assert (await handle.outcome()).status == "stopped", "it ended its run itself"
            async with asyncio.timeout(DEADLINE):
                while (after := await reaper.get(handle.id)).ended_late is None:
                    await asyncio.sleep(0.005)
            assert (after.status, after.epoch, after.outcome) == ("lost", 2, lost.outcome)
        finally:
            reaper.close()
