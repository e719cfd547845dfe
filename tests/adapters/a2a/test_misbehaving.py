"""Executors that do not do what they are told, and clients that ask at a bad moment."""

import asyncio

import pytest
from a2a.server.tasks import InMemoryTaskStore
from a2a.utils.errors import A2AError, InvalidParamsError, TaskNotCancelableError

import stoppable
from stoppable import Policy
from stoppable.adapters.a2a.task_states import TERMINAL

from .executors import (
    Asks,
    Fails,
    HangingCancel,
    InThread,
    RaisingCancel,
    Replies,
    Scripted,
    Steps,
    Swallows,
)
from .serving import SECONDS, served, state_of
from .test_cancel import until_stopping

HASTY = Policy(grace=0.2, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)


def facts_of(task):
    return dict(task.metadata["stoppable"])


async def started(server, inner):
    stream = server.stream()
    task_id = await stream.started()
    async with asyncio.timeout(SECONDS):
        await inner.working.wait()
    return stream, task_id


async def test_an_executor_that_swallows_its_cancel_is_not_called_canceled(supervisor):
    inner = Swallows()
    async with served(inner, supervisor, policy=HASTY) as server:
        stream, task_id = await started(server, inner)
        with pytest.raises(TaskNotCancelableError, match="unconfirmed"):
            await server.cancel(task_id)
        assert (await stream.ended())[-1] == "FAILED"
        task = await server.get(task_id)
        assert state_of(task) == "FAILED"
        assert facts_of(task)["status"] == "lost"
        assert "abandoned" in {node["fate"] for node in facts_of(task)["entries"]}
        inner.go.set()  # it completes after all, which nobody is told
        await until_quiet(supervisor)
        assert await server.state(task_id) == "FAILED"
        assert stream.states.count("COMPLETED") == 0


async def test_a_thread_that_works_on_is_not_forgotten(supervisor):
    inner = InThread()
    async with served(inner, supervisor, policy=HASTY) as server:
        stream, task_id = await started(server, inner)
        try:
            with pytest.raises(TaskNotCancelableError, match="unconfirmed"):
                await server.cancel(task_id)
            assert (await stream.ended())[-1] == "FAILED"
            facts = facts_of(await server.get(task_id))
            assert facts["status"] == "lost"
            assert "abandoned" in {node["fate"] for node in facts["entries"]}
        finally:
            inner.go.set()


async def test_a_thread_that_ends_within_the_grace_leaves_the_task_as_it_ended(supervisor):
    inner = InThread()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        canceling = asyncio.create_task(server.cancel(task_id))
        await until_stopping(supervisor)
        inner.go.set()
        with pytest.raises(TaskNotCancelableError, match="COMPLETED"):
            await canceling
        assert (await stream.ended())[-1] == "COMPLETED"


async def test_cancel_is_called_also_if_the_run_ends_before_the_news_of_its_stop(supervisor, monkeypatch):
    inner = Scripted()
    monkeypatch.setattr(supervisor, "listen", lambda *_, **__: Mute())
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        async with asyncio.timeout(SECONDS):
            while not inner.cancels:
                await asyncio.sleep(0.005)
    assert inner.cancels == 1


class Mute:
    """A listener that hears nothing."""

    is_open = True

    def close(self):
        pass


@pytest.mark.parametrize("kind", [Scripted, HangingCancel, RaisingCancel])
async def test_whatever_cancel_does_the_task_is_canceled_and_cancel_was_called(supervisor, kind):
    inner = kind()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        async with asyncio.timeout(SECONDS):
            while not inner.cancels:
                await asyncio.sleep(0.005)
    assert inner.cancels == 1
    assert inner.effects == 0


async def test_a_run_that_never_looked_is_not_waited_for(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        task = await server.cancel(task_id)
        assert facts_of(task)["rung"] == "cancel"
        receipt = await supervisor.handle(facts_of(task)["run"]).receipt()
        assert receipt.blind
        await stream.ended()


async def test_eight_cancels_at_once_are_eight_times_canceled(supervisor):
    async with served(inner := Scripted(), supervisor) as server:
        for _ in range(20):
            inner.working.clear()
            stream, task_id = await started(server, inner)
            tasks = await asyncio.gather(*(server.cancel(task_id) for _ in range(8)))
            assert [state_of(task) for task in tasks] == ["CANCELED"] * 8
            assert (await stream.ended())[-1] == "CANCELED"
        assert server.executor.tasks == ()


class SlowStore(InMemoryTaskStore):
    """Stores the end of a task when it is let go."""

    def __init__(self):
        super().__init__()
        self.ending, self.go = asyncio.Event(), asyncio.Event()

    async def save(self, task, context):
        if task.status.state in TERMINAL:
            self.ending.set()
            await self.go.wait()
        await super().save(task, context)


async def test_a_cancel_waits_for_a_slow_store_and_is_not_passed_to_the_sdk_meanwhile(supervisor, monkeypatch):
    monkeypatch.setattr("stoppable.adapters.a2a.handler._SETTLE_SECONDS", 0.0)
    inner, store = Scripted(), SlowStore()
    async with served(inner, supervisor, store=store) as server:
        stream, task_id = await started(server, inner)
        canceling = asyncio.create_task(server.cancel(task_id))
        async with asyncio.timeout(SECONDS):
            await store.ending.wait()
        for _ in range(5):
            assert await server.state(task_id) == "WORKING"
        assert not canceling.done()
        store.go.set()
        assert state_of(await canceling) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
    assert inner.cancels == 1


@pytest.mark.parametrize("kind", [Scripted, HangingCancel, RaisingCancel])
async def test_a_task_that_waits_for_a_message_is_canceled_too(supervisor, kind):
    class Parked(Asks, kind):
        pass

    inner = Parked()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        assert (await stream.ended())[-1] == "INPUT_REQUIRED"
        tasks = await asyncio.gather(*(server.cancel(stream.task_id) for _ in range(4)))
        assert [state_of(task) for task in tasks] == ["CANCELED"] * 4
        assert await server.state(stream.task_id) == "CANCELED"
        task = await server.get(stream.task_id)
        again = server.stream(task_id=stream.task_id, context_id=task.context_id)
        with pytest.raises(A2AError):
            await again.ended()
    assert len(inner.tasks) == 1


async def test_the_second_message_of_a_task_is_a_run_of_its_own(supervisor):
    inner = Asks()
    async with served(inner, supervisor) as server:
        first = server.stream()
        await first.ended()
        task = await server.get(first.task_id)
        inner.working.clear()
        second = server.stream(task_id=task.id, context_id=task.context_id, message_id="m-2")
        await inner.working.wait()
        assert len(await supervisor.find(server.executor.key(task.id))) == 1
        assert state_of(await server.cancel(task.id)) == "CANCELED"
        assert (await second.ended())[-1] == "CANCELED"
        page = await supervisor.list(stoppable.Filter(key=server.executor.key(task.id)))
        assert [run.status for run in page.runs] == ["stopped", "completed"]


async def test_a_cancel_says_how_and_why(supervisor):
    inner = Steps()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        await inner.stepped.wait()
        asked = {"mode": "immediate", "reason": "wrong topic"}
        task = await server.cancel(task_id, stoppable=asked)
        assert facts_of(task)["mode"] == "immediate"
        assert facts_of(task)["reason"] == "wrong topic"
        reason = (await supervisor.list()).runs[0].reason
        assert (reason.message, reason.source) == ("wrong topic", "a2a")
        await stream.ended()
        assert inner.effects == 0


async def test_a_grace_of_the_cancel_is_the_one_that_counts(supervisor):
    inner = Steps()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        await inner.stepped.wait()
        task = await server.cancel(task_id, grace=0.05)
        assert facts_of(task)["rung"] == "cancel"
        await stream.ended()


@pytest.mark.parametrize(
    "asked", [{"mode": "softly"}, {"grace": -1}, {"grace": "long"}, {"remaining": "x"}, {"reason": 7}]
)
async def test_a_cancel_that_asks_for_nonsense_stops_nothing(supervisor, asked):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        with pytest.raises(InvalidParamsError):
            await server.cancel(task_id, stoppable=asked)
        inner.go.set()
        assert (await stream.ended())[-1] == "COMPLETED"


async def test_a_cooperative_cancel_that_is_not_obeyed_leaves_the_task_working(supervisor, monkeypatch):
    monkeypatch.setattr("stoppable.adapters.a2a.handler._MOST_SECONDS", 0.1)
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        assert state_of(await server.cancel(task_id, mode="cooperative")) == "WORKING"
        inner.go.set()
        assert (await stream.ended())[-1] == "COMPLETED"


async def test_a_reply_without_a_task_passes_through(supervisor):
    async with served(Replies(), supervisor) as server:
        stream = server.stream()
        await stream.ended()
        assert [part.text for part in stream.events[0].message.parts] == ["hello"]


async def test_an_executor_that_fails_is_told_as_the_sdk_does(supervisor):
    inner = Fails()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        with pytest.raises(A2AError):
            await stream.ended()
        assert await server.state(stream.task_id) == "FAILED"


async def test_a_hold_rejects_the_task(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        await supervisor.hold(agent=server.executor.name, reason="maintenance")
        stream = server.stream()
        assert (await stream.ended())[-1] == "REJECTED"
    assert inner.tasks == []


@pytest.mark.parametrize("policy", ["keep", "stop"])
async def test_a_client_that_leaves_stops_its_task_only_if_asked(supervisor, policy):
    inner = Scripted()
    async with served(inner, supervisor, on_disconnect=policy) as server:
        stream, task_id = await started(server, inner)
        await stream.leave()
        if policy == "keep":
            assert not supervisor.runs[0].token.stopped
            inner.go.set()
        expected = "COMPLETED" if policy == "keep" else "CANCELED"
        async with asyncio.timeout(SECONDS):
            while await server.state(task_id) != expected:
                await asyncio.sleep(0.01)


async def test_the_end_of_the_server_leaves_no_task_working(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        await server.handler.close()
        assert await server.state(task_id) == "CANCELED"
        assert facts_of(await server.get(task_id))["kind"] == "shutdown"
        await stream.ended()


async def test_a_stop_that_comes_from_elsewhere_cancels_the_task(supervisor):
    """From the command line, a page, or another process: the task says so too."""
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream, task_id = await started(server, inner)
        await supervisor.stop(supervisor.runs[0].id, reason="from the page", actor="ann")
        assert (await stream.ended())[-1] == "CANCELED"
        assert facts_of(await server.get(task_id))["actor"] == "ann"


async def until_quiet(supervisor):
    async with asyncio.timeout(SECONDS):
        while supervisor.runs:
            await asyncio.sleep(0.005)
