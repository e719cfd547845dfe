"""Whoever sees the end of a run sees the ends below it."""

import asyncio

import stoppable
from stoppable import Supervisor
from stoppable.stores.future import StoreFuture, settle
from stoppable.stores.memory import MemoryStore


class Late(MemoryStore):
    """Answers the calls that add to the log of one run when it is told to, and notes in which order runs end."""

    def __init__(self):
        super().__init__()
        self.ended = []
        self._unanswered = []
        self._is_open = False

    def append(self, run_id, epoch, events):
        reply = super().append(run_id, epoch, events)
        if self._is_open or not any(event.data.get("name") == "held up" for event in events):
            return reply
        late = StoreFuture()
        self._unanswered.append((late, reply.result(), None))
        return late

    def finish(self, run_id, *rest):
        self.ended.append(run_id)
        return super().finish(run_id, *rest)

    def release(self):
        self._is_open = True
        settle(self._unanswered)


async def test_the_end_of_a_run_is_kept_after_the_ends_below_it():
    """The store is still at an event of the child when both have ended."""
    store = Late()
    children = []

    @stoppable.agent
    async def child():
        children.append(stoppable.current_run().id)
        stoppable.emit("held up")
        while not store._unanswered:
            await asyncio.sleep(0.001)

    async def parent():
        await child()

    async with asyncio.timeout(30), Supervisor(store) as supervisor:
        handle = await supervisor.start(parent)
        run = supervisor._core.recorder.logs[handle.id].run
        while run.outcome is None or not supervisor._core.recorder.outbox.is_idle:
            await asyncio.sleep(0.001)
        store.release()
        await handle.outcome()
        assert store.ended == [*children, handle.id]
        assert {record.status for record in await supervisor.tree(handle.id)} == {"completed"}
