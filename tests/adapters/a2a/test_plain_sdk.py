"""What the SDK's own server does with the same executors: the plain side of the table in docs/how-to/a2a.md.

These tests describe a2a-sdk as it is, not as we want it. One that fails means that the SDK has changed, maybe for the
better: measure again with ``bench/a2a_cancels.py``, and mend the table.
"""

import asyncio
import contextlib
import threading

import pytest
from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore
from a2a.types import SubscribeToTaskRequest
from a2a.utils.errors import InternalError, TaskNotCancelableError

from .executors import HangingCancel, InThread, RaisingCancel, SaysCanceled, Scripted, Swallows
from .serving import SECONDS, Stream, served, state_of
from .test_misbehaving import started
from .test_replicas import replicas, task_after_sigterm

MENDED = (
    "the SDK does this right now: take the row out of the table in docs/how-to/a2a.md and out of bench/a2a_cancels.py"
)

pytestmark = pytest.mark.filterwarnings("ignore:A VersionedTaskStore was configured without")


class Counted(InMemoryTaskStore):
    """Counts how often it is asked for a task."""

    asked = 0

    async def get(self, task_id, context):
        self.asked += 1
        return await super().get(task_id, context)


async def until(server, task_id, *states):
    """Wait until a task is stored with one of these states, and return which."""
    async with asyncio.timeout(SECONDS):
        while (state := await server.state(task_id)) not in states:
            await asyncio.sleep(0.005)
    return state


async def test_an_executor_that_swallows_its_cancel_is_called_canceled_and_ends_completed():
    class SwallowsAndSays(Swallows, SaysCanceled):
        pass

    inner = SwallowsAndSays()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        try:
            assert state_of(await server.cancel(task_id)) == "CANCELED", MENDED
        finally:
            inner.go.set()
        ends = [state for state in await stream.ended() if state in {"CANCELED", "COMPLETED"}]
        assert ends == ["CANCELED", "COMPLETED"], MENDED
        assert await server.state(task_id) == "COMPLETED", MENDED


async def test_an_executor_that_swallows_its_cancel_and_says_nothing_leaves_the_cancel_unanswered():
    inner = Swallows()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        canceling = asyncio.create_task(server.cancel(task_id))
        try:
            async with asyncio.timeout(SECONDS):
                while not inner.effects:  # it has swallowed it
                    await asyncio.sleep(0.005)
            assert await server.state(task_id) == "WORKING", MENDED
            assert not canceling.done(), MENDED
        finally:
            inner.go.set()
        assert state_of(await canceling) == "COMPLETED", MENDED  # which is no error, though nothing was canceled
        await stream.ended()


async def test_a_thread_works_on_behind_a_task_that_is_canceled():
    class ThreadAndSays(InThread, SaysCanceled):
        def block(self, loop):
            super().block(loop)
            worked.set()

    inner, worked = ThreadAndSays(), threading.Event()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        try:
            assert state_of(await server.cancel(task_id)) == "CANCELED", MENDED
            assert (await stream.ended())[-1] == "CANCELED"
            assert inner.effects == 0
        finally:
            inner.go.set()
        assert await asyncio.to_thread(worked.wait, SECONDS), MENDED
        assert (inner.effects, await server.state(task_id)) == (1, "CANCELED")


async def test_an_empty_cancel_leaves_the_stream_without_an_end():
    inner = Scripted()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "WORKING", MENDED


async def test_a_cancel_that_hangs_is_not_answered_and_blocks_the_next_one_and_new_readers():
    inner, store = HangingCancel(), Counted()
    async with served(inner, store=store) as server:
        stream, task_id = await started(server, inner)
        first = asyncio.create_task(server.cancel(task_id))
        try:
            async with asyncio.timeout(SECONDS):
                while not inner.cancels:
                    await asyncio.sleep(0.005)
            before = store.asked
            second = asyncio.create_task(server.cancel(task_id))
            again = Stream(server.client.subscribe(SubscribeToTaskRequest(id=task_id)))
            async with asyncio.timeout(SECONDS):
                while store.asked < before + 4:  # each looks twice before it comes to the lock
                    await asyncio.sleep(0.005)
            inner.go.set()  # the work goes on to its end
            await until(server, task_id, "COMPLETED")
            assert inner.effects == 1
            assert not first.done(), MENDED
            assert not second.done(), MENDED
            assert again.states == [], MENDED
        finally:
            inner.go.set()
            inner.let_go.set()
        for one in (first, second, again.task, stream.task):  # however they end now
            with contextlib.suppress(Exception):
                async with asyncio.timeout(SECONDS):
                    await one


async def test_a_cancel_that_raises_is_an_internal_error_and_the_task_has_failed():
    inner = RaisingCancel()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        with pytest.raises(InternalError):
            await server.cancel(task_id)
        assert await until(server, task_id, "FAILED", "CANCELED") == "FAILED", MENDED
        await stream.ended()


async def test_the_metadata_of_a_cancel_does_not_reach_the_executor():
    seen = []

    class Looks(SaysCanceled):
        async def cancel(self, context, queue):
            seen.append(dict(context.metadata))
            await super().cancel(context, queue)

    inner = Looks()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        await server.cancel(task_id, reason="wrong topic")
        await stream.ended()
    assert seen == [{}], MENDED


async def test_a_cancel_that_is_sent_again_is_an_error():
    inner = SaysCanceled()
    async with served(inner) as server:
        stream, task_id = await started(server, inner)
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        await stream.ended()
        await until(server, task_id, "CANCELED")
        with pytest.raises(TaskNotCancelableError):
            await server.cancel(task_id)


async def test_most_of_eight_cancels_at_once_are_errors():
    """How many depends on the order in which they arrive; ``pytest -rP`` shows the number."""
    said = []
    async with served(inner := SaysCanceled()) as server:
        for _ in range(20):
            inner.working.clear()
            stream, task_id = await started(server, inner)
            answers = await asyncio.gather(*(server.cancel(task_id) for _ in range(8)), return_exceptions=True)
            said += [type(one).__name__ if isinstance(one, Exception) else state_of(one) for one in answers]
            await stream.leave()  # it may stay open
    print(f"plain SDK: {said.count('CANCELED')} of {len(said)} cancels answered with canceled")
    assert said.count("CANCELED") < len(said) == 160, MENDED


@pytest.mark.parametrize("kind", [InMemoryTaskStore, DatabaseTaskStore, VersionedDatabaseTaskStore])
async def test_a_cancel_at_the_other_replica_is_called_canceled_and_the_work_is_done(tmp_path, kind):
    async with replicas(kind, tmp_path, SaysCanceled, is_plain=True) as (inner, here, there):
        stream, task_id = await started(here, inner)
        await until(here, task_id, "WORKING")  # its owner writes nothing more before the end
        assert state_of(await there.cancel(task_id)) == "CANCELED"
        assert (inner.cancels, inner.effects) == (0, 0), MENDED
        inner.go.set()
        await stream.ended()
        assert inner.effects == 1, MENDED
        # A store with versions keeps the first end; the others end as if nobody had canceled.
        ended = "CANCELED" if kind is VersionedDatabaseTaskStore else "COMPLETED"
        assert await here.state(task_id) == ended, MENDED


async def test_sigterm_leaves_the_task_working(tmp_path):
    assert state_of(await task_after_sigterm(tmp_path, "plain")) == "WORKING", MENDED
