"""The ten cases of cancelling a task, on a real server with the SDK's own client."""

import asyncio

import pytest
from a2a.server.context import ServerCallContext
from a2a.types import CancelTaskRequest, Task, TaskState, TaskStatus
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict

import stoppable

from .executors import Asks, RaisingCancel, Scripted, Steps
from .serving import SECONDS, served, state_of


async def test_cancellation_before_execution(supervisor):
    """A task that is stored and whose run has not begun never runs its body."""
    inner = Scripted()
    async with served(inner, supervisor) as server:
        await supervisor.stop(key=server.executor.key("early"))  # waits for its run
        early = Task(id="early", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
        await server.handler.task_store.save(early, ServerCallContext())
        stream = server.stream(task_id="early", context_id="c")
        assert (await stream.ended())[-1] == "CANCELED"
        assert await server.state("early") == "CANCELED"
    assert inner.tasks == []


async def test_cancellation_during_streaming(supervisor):
    """A stop between two steps lets the step in flight finish; the stream ends with the canceled state."""
    inner = Steps()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        task_id = await stream.started()
        await inner.stepped.wait()
        canceling = asyncio.create_task(server.cancel(task_id))
        await until_stopping(supervisor)
        inner.turns.release()
        assert state_of(await canceling) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        assert await server.state(task_id) == "CANCELED"
    assert inner.effects == 1


async def test_cancellation_during_non_streaming(supervisor):
    """Whoever waits for the answer of a message gets the canceled task."""
    inner = Scripted()
    async with served(inner, supervisor) as server:
        sent = asyncio.create_task(server.http.post(server.url + "/message:send", json=SENT, headers=VERSION))
        await inner.working.wait()
        canceled = await server.cancel(inner.tasks[0])
        assert state_of(canceled) == "CANCELED"
        async with asyncio.timeout(SECONDS):
            assert (await sent).json()["task"]["status"]["state"] == "TASK_STATE_CANCELED"
    assert inner.effects == 0


async def test_is_cancelled_flag(supervisor):
    """An executor that asks sees the stop, and no stop before."""
    seen = []

    class Looks(Scripted):
        async def work(self, context, updater):
            seen.append(stoppable.should_stop())
            await self.go.wait()
            seen.append(stoppable.should_stop())

    inner = Looks()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        task_id = await stream.started()
        await inner.working.wait()
        canceling = asyncio.create_task(server.cancel(task_id))
        await until_stopping(supervisor)
        inner.go.set()
        assert state_of(await canceling) == "CANCELED"
        await stream.ended()
    assert seen == [False, True]


async def test_cleanup_task_resources(supervisor):
    """A ``finally`` runs to its end before the task is canceled, and nothing of the task is kept in memory."""
    cleaned = []

    class Cleans(Scripted):
        async def work(self, context, updater):
            try:
                await self.go.wait()
            finally:
                await asyncio.sleep(0.05)
                cleaned.append(context.task_id)

    inner = Cleans()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        task_id = await stream.started()
        await inner.working.wait()
        await server.cancel(task_id)
        assert cleaned == [task_id]
        await stream.ended()
        assert server.executor.tasks == ()


async def test_cancel_without_task_id(supervisor):
    async with served(Scripted(), supervisor) as server:
        with pytest.raises(InvalidParamsError):
            await server.client.cancel_task(CancelTaskRequest())


async def test_cancel_nonexistent_task(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        with pytest.raises(TaskNotFoundError):
            await server.cancel("nobody")
        stream = server.stream()
        inner.go.set()
        assert (await stream.ended())[-1] == "COMPLETED"


async def test_execution_completes_before_cancel(supervisor):
    inner = Scripted()
    inner.go.set()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        assert (await stream.ended())[-1] == "COMPLETED"
        with pytest.raises(TaskNotCancelableError, match="COMPLETED"):
            await server.cancel(stream.task_id)
        assert await server.state(stream.task_id) == "COMPLETED"


async def test_exception_during_cancellation(supervisor):
    """An executor whose ``cancel()`` raises is canceled all the same."""
    inner = RaisingCancel()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        task_id = await stream.started()
        await inner.working.wait()
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
    assert inner.effects == 0


async def test_cancellation_with_multiple_tasks(supervisor):
    """Of three tasks one is canceled; the others complete."""
    inner = Scripted()
    async with served(inner, supervisor) as server:
        streams = [server.stream(text) for text in "ABC"]
        ids = [await stream.started() for stream in streams]
        async with asyncio.timeout(SECONDS):
            while len(inner.tasks) < 3:
                await asyncio.sleep(0.005)
        assert state_of(await server.cancel(ids[1])) == "CANCELED"
        inner.go.set()
        assert [(await stream.ended())[-1] for stream in streams] == ["COMPLETED", "CANCELED", "COMPLETED"]
        assert [await server.state(task_id) for task_id in ids] == ["COMPLETED", "CANCELED", "COMPLETED"]
    assert inner.effects == 2


async def test_a_task_that_waits_for_input_says_why_it_was_canceled(supervisor):
    inner = Asks()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        assert (await stream.ended())[-1] == "INPUT_REQUIRED"
        canceled = await server.cancel(stream.task_id, stoppable={"mode": "immediate", "reason": "no longer needed"})
        for task in (canceled, await server.get(stream.task_id)):
            assert state_of(task) == "CANCELED"
            facts = MessageToDict(task.metadata)["stoppable"]
            assert (facts["status"], facts["mode"], facts["reason"]) == ("stopped", "immediate", "no longer needed")
            assert (facts["run"], facts["entries"]) == (None, [])


SENT = {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "go"}]}}
VERSION = {"A2A-Version": "1.0"}


async def until_stopping(supervisor):
    async with asyncio.timeout(SECONDS):
        while not any(run.token.stopped for run in supervisor.runs):
            await asyncio.sleep(0.005)
