"""A stop that comes when a run has ended, but its end is not in the store yet: the answer and the record agree."""

import asyncio
import contextlib

import pytest

import stoppable
from stoppable import Supervisor
from stoppable.stores.base import StoreFuture, settle
from stoppable.stores.memory import MemoryStore

DEADLINE = 30


class Held(MemoryStore):
    """Stores the ends of runs when it is told to."""

    def __init__(self):
        super().__init__()
        self.stops = 0
        self.is_asked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._calls = []

    def finish(self, *args):
        late = StoreFuture()
        self._calls.append((late, args))
        self._loop.call_soon_threadsafe(self.is_asked.set)
        return late

    def request_stop(self, request):
        answer = super().request_stop(request)
        self.stops += 1
        return answer

    def release(self):
        calls, self._calls = self._calls, []
        for late, args in calls:
            settle([(late, super().finish(*args).result(), None)])


@pytest.fixture(autouse=True)
def only_a_hang_is_late(monkeypatch):
    monkeypatch.setattr("stoppable.supervisor.core._ACKNOWLEDGE_SECONDS", DEADLINE)


@contextlib.asynccontextmanager
async def ended(body, *, is_stopped=False):
    """Run a body to its end, and enter the block before the end is stored."""
    store = Held()
    async with asyncio.timeout(DEADLINE), Supervisor(store) as supervisor:
        handle = await supervisor.start(body, key="conversation")
        if is_stopped:
            while (await handle.record()).status != "running":
                await asyncio.sleep(0.001)
            await supervisor.stop(handle.id, reason="first")
        await store.is_asked.wait()
        try:
            yield store, supervisor, handle.id
        finally:
            store.release()


async def answer(store, supervisor, run_id, how):
    """Return the receipt of a stop that was asked for before the end was stored, and the one that was stored."""
    before = store.stops
    asked = asyncio.ensure_future(supervisor.stop(**how))
    while store.stops == before:
        await asyncio.sleep(0.001)
    for _ in range(20):  # it could answer now
        await asyncio.sleep(0)
    assert not asked.done()
    store.release()
    answered = await asked
    [receipt] = answered if "key" in how else [answered]
    return receipt, (await supervisor.get(run_id)).receipt


@pytest.mark.parametrize("wait", [None, DEADLINE])
@pytest.mark.parametrize("is_by_key", [False, True])
async def test_one_that_finished_on_its_own(wait, is_by_key):
    async def body():
        return 7

    async with ended(body) as (store, supervisor, run_id):
        how = {"key": "conversation"} if is_by_key else {"run_id": run_id}
        told, kept = await answer(store, supervisor, run_id, {**how, "wait": wait, "reason": "late"})
        assert (told.answer, told.status, told.too_late) == ("accepted", "completed", True)
        assert (told.mode, told.reason.message) == ("graceful", "late")
        assert told == kept


@pytest.mark.parametrize("is_by_key", [False, True])
async def test_one_that_was_stopped_and_is_stopped_again(is_by_key):
    async def body():
        while True:
            await asyncio.sleep(0)
            stoppable.check()

    async with ended(body, is_stopped=True) as (store, supervisor, run_id):
        how = {"key": "conversation"} if is_by_key else {"run_id": run_id}
        now = await supervisor.stop(run_id)
        assert (now.answer, now.final, now.status) == ("already_stopping", False, (await supervisor.get(run_id)).status)
        told, kept = await answer(store, supervisor, run_id, {**how, "wait": DEADLINE})
        assert (told.answer, told.status, told.reason.message) == ("already_stopping", "stopped", "first")
        assert (told.entries, told.ended_at) == (kept.entries, kept.ended_at)
