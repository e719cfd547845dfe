"""A task that has ended executes nothing more: messages that were queued behind its run are refused."""

import asyncio

import pytest
from a2a.utils.errors import UnsupportedOperationError

import stoppable
from stoppable.adapters.a2a.task_states import Address

from ...waiting import until
from .executors import Asks, Steps, begin
from .serving import SECONDS, served, state_of

VERSION = {"A2A-Version": "1.0"}


class UntilTold(Steps):
    """Takes steps until it is let go."""

    async def work(self, context, updater):
        while not self.go.is_set():
            async with stoppable.boundary("tool", "step"):
                self.stepped.set()
                await self.turns.acquire()
                self.effects += 1
            await updater.start_work()


class AsksAtTheEnd(UntilTold):
    """Takes steps without boundaries, and asks for input after them."""

    async def execute(self, context, queue):
        updater = await begin(context, queue)
        self.tasks.append(context.task_id)
        self.stepped.set()
        while not self.go.is_set():
            await self.turns.acquire()
            await updater.start_work()
        await updater.requires_input()


async def queued_behind(server, inner, stream):
    """Send a second message to the task of a stream; return its stream once it waits for the run of the first one."""
    task_id = await stream.started()
    await inner.stepped.wait()
    second = server.stream("second", task_id=task_id, message_id="m-2")
    async with asyncio.timeout(SECONDS):
        while not second.events:  # it is queued before it sees the first event
            inner.turns.release()
            await asyncio.sleep(0.01)
    return second


async def test_a_message_queued_behind_a_canceled_run_is_not_executed(supervisor):
    inner = UntilTold()
    async with served(inner, supervisor) as server:
        first = server.stream("first")
        second = await queued_behind(server, inner, first)
        assert state_of(await server.cancel(first.task_id, stoppable={"mode": "immediate"})) == "CANCELED"
        assert (await first.ended())[-1] == "CANCELED"
        with pytest.raises(UnsupportedOperationError, match="CANCELED"):
            await second.ended()
        effects = inner.effects
        await until(lambda: not supervisor.runs)
        assert await server.state(first.task_id) == "CANCELED"
    assert inner.tasks == [first.task_id]
    assert inner.effects == effects


async def test_a_message_queued_behind_the_last_run_of_a_task_is_not_executed(supervisor):
    """The answer to it is not the result of the message before."""
    inner = UntilTold()
    async with served(inner, supervisor) as server:
        first = server.stream("first")
        second = await queued_behind(server, inner, first)
        sent = {"messageId": "m-3", "role": "ROLE_USER", "taskId": first.task_id, "parts": [{"text": "third"}]}
        posting = server.http.post(server.url + "/message:send", json={"message": sent}, headers=VERSION)
        third = asyncio.create_task(posting)
        registry = server.handler._active_task_registry
        active = await registry.get(first.task_id)
        await until(lambda: active._reference_count == 4)  # three readers beside the run
        inner.go.set()
        inner.turns.release()
        assert (await first.ended())[-1] == "COMPLETED"
        with pytest.raises(UnsupportedOperationError, match="COMPLETED"):
            await second.ended()
        async with asyncio.timeout(SECONDS):
            refused = await third
        assert refused.status_code == 400
        assert refused.json()["error"]["details"][0]["reason"] == "UNSUPPORTED_OPERATION"
    assert inner.tasks == [first.task_id]


async def test_a_message_queued_behind_a_run_that_asks_does_not_begin_during_the_cancel(supervisor):
    """The run asks for input before it notices the cooperative stop; the cancel ends the task, not the next message."""
    inner = AsksAtTheEnd()
    async with served(inner, supervisor, mode="cooperative") as server:
        first = server.stream("first")
        second = await queued_behind(server, inner, first)
        canceling = asyncio.create_task(server.cancel(first.task_id))
        await until(lambda: any(run.token.stopped for run in supervisor.runs))
        inner.go.set()
        inner.turns.release()
        async with asyncio.timeout(SECONDS):
            assert state_of(await canceling) == "CANCELED"
        assert "INPUT_REQUIRED" in first.states
        await asyncio.wait({first.task, second.task}, timeout=SECONDS)
        assert isinstance(second.task.exception(), UnsupportedOperationError)
    assert inner.tasks == [first.task_id]
    assert inner.effects == 0


async def test_a_message_waits_for_a_cancel_and_begins_if_it_ended_nothing(supervisor):
    inner = Asks()
    inner.go.set()
    async with served(inner, supervisor) as server:
        first = server.stream("first")
        assert (await first.ended())[-1] == "INPUT_REQUIRED"
        active = await server.handler._active_task_registry.get(first.task_id)
        with server.executor.canceling(Address(None, first.task_id)):
            second = server.stream("second", task_id=first.task_id, message_id="m-2")
            await until(active._request_lock.locked)
            for _ in range(10):
                await asyncio.sleep(0)
            assert len(inner.tasks) == 1
        assert (await second.ended())[-1] == "COMPLETED"
    assert len(inner.tasks) == 2
