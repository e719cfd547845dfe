"""G14: a stop that was answered is in the store; it takes effect though whoever took it is gone, or nobody is told."""

import asyncio

import pytest
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable.errors import StoreError
from stoppable.records import StopRequest
from stoppable.stores.base import Listeners, StoreFuture
from stoppable.stores.sqlite import SqliteStore
from stoppable.stores.sqlite.wakeups import Wakeups

DEADLINE = 30
TTL = 9.0  # a heartbeat every three seconds, and a lease that a busy machine does not let run out


async def forever():
    while True:
        async with stoppable.boundary("tool", "step"):
            await asyncio.sleep(0.005)


async def deaf(go):
    await go.wait()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def kept(path, run_id):
    """Return what somebody finds who opens the file anew."""
    store = SqliteStore(path)
    store.open()
    try:
        return store.get(run_id).result(DEADLINE)
    finally:
        store.close()


@pytest.mark.parametrize("mode", ["cooperative", "graceful", "immediate", "kill"])
async def test_a_stop_is_in_the_file_before_it_is_answered(mode, path):
    async with Supervisor(SqliteStore(path)) as supervisor:
        go = asyncio.Event()
        handle = await supervisor.start(deaf, go)
        receipt = await supervisor.stop(handle.id, mode, "enough", "ann")
        assert receipt.answer == "accepted"
        stop = kept(path, handle.id).stop
        assert (stop.mode, stop.reason.message, stop.reason.actor) == (mode, "enough", "ann")
        go.set()
        await handle.outcome()


async def test_a_stop_that_another_process_took_reaches_the_run_wherever_it_is_executed(path):
    async with Supervisor(SqliteStore(path)) as there, Supervisor(SqliteStore(path)) as here:
        handle = await there.start(forever)
        await here.stop(handle.id, reason="from elsewhere")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.reason.message) == ("stopped", "from elsewhere")


async def test_a_stop_through_another_process_is_answered_when_its_gate_is_closed_and_not_at_the_next_look(
    path, monkeypatch
):
    monkeypatch.setattr("stoppable.stores.sqlite.lite_engine.LOOK_SECONDS", 3600)
    async with Supervisor(SqliteStore(path)) as there, Supervisor(SqliteStore(path)) as here:
        monkeypatch.setattr("stoppable.supervisor.core._ACKNOWLEDGE_SECONDS", DEADLINE)
        monkeypatch.setattr("stoppable.supervisor.core.LOOK_SECONDS", 0.1)
        handle = await there.start(forever)
        await until(lambda: handle.run.in_flight)
        receipt = await here.stop(handle.id)
        assert (receipt.in_flight, receipt.acknowledged_at is not None) == (("tool:step",), True)
        await handle.outcome()


async def test_it_takes_effect_though_nobody_is_told_and_whoever_took_it_is_gone(path, monkeypatch):
    """The intent is read with the next heartbeat: a notification is speed, the store is the truth."""
    async with Supervisor(SqliteStore(path), ttl=TTL) as there:
        handle = await there.start(forever)
        monkeypatch.setattr(Wakeups, "wake", lambda *_: None)
        monkeypatch.setattr(Listeners, "tell", lambda *_: None)
        taker = SqliteStore(path)
        taker.open()
        intent = there._core.intent("graceful", "its taker is gone", None, None)
        taker.request_stop(StopRequest(target=handle.id, intent=intent)).result(DEADLINE)
        taker.close()
        async with asyncio.timeout(DEADLINE):
            outcome = await handle.outcome()
        assert (outcome.status, outcome.reason.message) == ("stopped", "its taker is gone")


async def test_a_stop_that_came_before_its_run_waits_for_it_over_a_restart(path):
    async with Supervisor(SqliteStore(path)) as before:
        await before.stop("later", reason="too early", if_unknown="wait")
    ran = []

    async def agent():
        ran.append(True)

    async with Supervisor(SqliteStore(path)) as after:
        outcome = await (await after.start(agent, run_id="later")).outcome()
        assert (outcome.status, outcome.reason.message, ran) == ("stopped", "too early", [])


async def test_a_hold_refuses_starts_in_every_process_and_after_a_restart(path):
    async with Supervisor(SqliteStore(path)) as first:
        await first.stop_where(owner="ann", hold=True)
    async with Supervisor(SqliteStore(path)) as second:
        with pytest.raises(stoppable.errors.RunHeld):
            await second.start(forever, owner="ann")
        handle = await second.start(forever, owner="bob")
        await handle.stop()


async def test_a_stop_that_the_store_did_not_take_is_not_answered_but_told_to_runs_of_this_process(path, monkeypatch):
    async with Supervisor(SqliteStore(path)) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.run.in_flight)

        def refuses(*_, **__):
            return StoreFuture.failed(StoreError("the disk is full"))

        with monkeypatch.context() as broken:
            broken.setattr(supervisor.store, "request_stop", refuses)
            with pytest.raises(StoreError, match="the disk is full"):
                await supervisor.stop(handle.id)
        assert handle.run.token.stopped
        assert (await handle.outcome()).status == "stopped"
