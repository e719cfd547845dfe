"""The runs of this process are told of a stop at once; only the answer waits for the store."""

import asyncio
import contextlib
import threading
import time

import pytest
from tests.supervisor.test_lease import Faulty, forever
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable._core import clock
from stoppable._engine import control
from stoppable.errors import RunNotFound, StoreError
from stoppable.stores.base import StoreFuture, settle


class Held(Faulty):
    """A store that keeps a stop and answers it when it is let go."""

    def __init__(self, inner):
        super().__init__(inner)
        self.held = []

    def request_stop(self, request):
        reply = StoreFuture()
        self.held.append((self._inner.request_stop(request), reply))
        return reply

    def let_go(self):
        for kept, reply in self.held:
            settle([(reply, kept.result(), None)])


async def test_a_run_halts_and_its_end_is_kept_while_the_answer_waits_for_the_store(store):
    held = Held(store)
    async with Supervisor(held) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        stop = asyncio.create_task(handle.stop(reason="enough", actor="ops"))
        await until(lambda: handle.run.outcome is not None)
        await until(lambda: held.held)
        assert not stop.done(), "G14: nothing is answered that is not kept"
        held.let_go()
        receipt = await stop
        assert (receipt.answer, receipt.status, receipt.reason.actor) == ("accepted", "stopping", "ops")
        await handle.outcome()
        record = await handle.record()
        assert (record.status, record.stop.reason.message) == ("stopped", "enough")
        kept = record.receipt
        assert record.stop_requested_at <= kept.acknowledged_at + 1e-3
        assert kept.requested_at <= kept.acknowledged_at <= kept.delivered_at <= kept.ended_at
        statuses = [event.data["status"] async for event in handle.events() if event.type == "status"]
        assert statuses[-2:] == ["stopping", "stopped"], "the stop is handed to the store before the end"


async def test_a_stop_that_cannot_be_kept_says_that_the_runs_were_told_and_is_kept_later(store):
    faulty = Faulty(store)
    async with Supervisor(faulty, ttl=3) as supervisor:
        handle = await supervisor.start(forever)
        await until(lambda: handle.status == "running")
        faulty.failing = {"request_stop"}
        with pytest.raises(StoreError, match=r"disk is full.*told to stop anyway"):
            await handle.stop(reason="enough")
        await until(lambda: handle.run.outcome is not None)
        faulty.failing = set()
        await handle.outcome()
        record = await handle.record()
        assert (record.status, record.stop.reason.message) == ("stopped", "enough")
        assert [entry.action for entry in await supervisor.audit()] == ["stop"]


async def test_the_same_key_again_stops_nothing_that_came_since(store):
    async with Supervisor(store) as supervisor:
        first = await supervisor.start(forever, owner="me")
        await supervisor.stop_where(owner="me", idempotency_key="k")
        assert (await first.outcome()).status == "stopped"
        second = await supervisor.start(forever, owner="me")
        again = await supervisor.stop_where(owner="me", idempotency_key="k")
        assert [receipt.run_id for receipt in again] == [first.id]
        assert not second.run.token.stopped


async def test_a_child_that_has_just_begun_can_be_stopped_by_its_id(store):
    """It is registered by way of the queue, and so is its stop, after it."""
    async with Supervisor(store) as supervisor:

        async def parent():
            for _ in range(50):
                child = await stoppable.spawn(forever)
                while child.status == "pending":
                    await asyncio.sleep(0)
                receipt = await supervisor.stop(child.id)
                assert receipt.answer == "accepted"
                assert (await child.outcome()).status == "stopped"

        assert (await (await supervisor.start(parent)).outcome()).status == "completed"


async def test_what_a_stop_does_not_mean_is_not_told(store):
    async with Supervisor(store) as supervisor:
        mine = await supervisor.start(forever, owner="me", labels={"team": "a"})
        others = [
            await supervisor.start(forever, owner="me", labels={"team": "b"}),
            await supervisor.start(forever, owner="you", labels={"team": "a"}),
        ]
        with pytest.raises(RunNotFound):
            await supervisor.stop(others[1].id, owner="me")
        await supervisor.stop_where(labels={"team": "a"}, within="me")
        await supervisor.stop_where(owner="you", dry_run=True)
        assert mine.run.token.stopped
        assert not any(other.run.token.stopped for other in others)


@contextlib.contextmanager
def held_control():
    """Keep the thread for stores from doing anything else."""
    is_held, let_go = threading.Event(), threading.Event()

    def hold():
        is_held.set()
        let_go.wait(30)

    control.for_stores().call_at(clock.now(), hold)
    assert is_held.wait(30)
    try:
        yield
    finally:
        let_go.set()


async def test_many_are_halted_before_anything_is_written_about_the_first(store):
    faulty = Faulty(store)
    halted = []

    async def body():
        try:
            await stoppable.sleep(3600)
        finally:
            halted.append(len([name for name in faulty.calls if name in {"request_stop", "acknowledge", "finish"}]))

    async with Supervisor(faulty) as supervisor:
        handles = [await supervisor.start(body) for _ in range(200)]
        writer = supervisor._core.writer
        await until(lambda: all(handle.status == "running" for handle in handles))
        await until(lambda: not writer.calls._calls and not any(log.is_busy for log in writer.logs.values()))
        with held_control():  # what it has to write would come as soon as it has the time
            stopping = asyncio.create_task(supervisor.stop_where(all=True))
            await until(lambda: len(halted) == 200)
        assert {receipt.status for receipt in await stopping} == {"stopping"}
        for handle in handles:
            await handle.outcome()
        assert halted == [0] * 200
        assert {(await handle.record()).status for handle in handles} == {"stopped"}


async def test_an_end_is_kept_though_its_loop_is_blocked(store):
    """The loop would have had it written in its next turn; the control thread looks by itself."""
    kept = []

    def block(run_id):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not store.get(run_id).result().over:
            time.sleep(0.001)
        kept.append(store.get(run_id).result().status)

    async def ends():
        asyncio.get_running_loop().call_soon(block, stoppable.current_run().id)

    async with Supervisor(store) as supervisor:
        await (await supervisor.start(ends)).outcome()
        assert kept == ["completed"]
