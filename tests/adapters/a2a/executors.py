"""Executors as people write them, well and badly."""

import asyncio
import threading

from a2a.server.agent_execution import AgentExecutor
from a2a.server.tasks import TaskUpdater
from a2a.types import Part, Task, TaskState, TaskStatus

import stoppable


async def begin(context, queue):
    """Publish the task and that it is worked on, and return what updates it."""
    if context.current_task is None:
        status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=status))
    updater = TaskUpdater(queue, context.task_id, context.context_id)
    await updater.start_work()
    return updater


class Scripted(AgentExecutor):
    """Begins, waits until it is let go, and completes; ``effects`` counts what it did."""

    def __init__(self):
        self.working = asyncio.Event()
        self.go = asyncio.Event()
        self.effects = 0
        self.cancels = 0
        self.tasks = []

    async def execute(self, context, queue):
        updater = await begin(context, queue)
        self.tasks.append(context.task_id)
        self.note_working()
        await self.work(context, updater)
        await updater.complete()

    def note_working(self):
        self.working.set()

    async def work(self, context, updater):
        await self.go.wait()
        self.effects += 1

    async def cancel(self, context, queue):
        self.cancels += 1


class Steps(Scripted):
    """Takes steps that are boundaries; each waits for its turn."""

    def __init__(self, count=10):
        super().__init__()
        self.count, self.turns = count, asyncio.Semaphore(0)
        self.stepped = asyncio.Event()

    async def work(self, context, updater):
        for number in range(self.count):
            async with stoppable.boundary("tool", f"step {number}"):
                self.stepped.set()
                await self.turns.acquire()
                self.effects += 1
            await updater.add_artifact([Part(text=f"step {number}")])


class Swallows(Scripted):
    """Takes a CancelledError for an error like any other."""

    async def work(self, context, updater):
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.effects += 1


class InThread(Scripted):
    """Works in a thread that knows nothing of stops."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    async def work(self, context, updater):
        await asyncio.to_thread(self.block, asyncio.get_running_loop())

    def note_working(self):
        """Not yet: a stop before the thread begins would skip it."""

    def block(self, loop):
        loop.call_soon_threadsafe(self.working.set)
        self.go.wait(60)
        self.effects += 1


class SaysCanceled(Scripted):
    """Cancels as the samples of the SDK do."""

    async def cancel(self, context, queue):
        await super().cancel(context, queue)
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


class HangingCancel(Scripted):
    def __init__(self):
        super().__init__()
        self.let_go = asyncio.Event()

    async def cancel(self, context, queue):
        self.cancels += 1
        await self.let_go.wait()


class RaisingCancel(Scripted):
    async def cancel(self, context, queue):
        self.cancels += 1
        raise NotImplementedError("cancel not supported")


class Asks(Scripted):
    """Asks for input at the first message, and completes at the second."""

    async def execute(self, context, queue):
        is_first = context.current_task is None
        updater = await begin(context, queue)
        self.tasks.append(context.task_id)
        self.working.set()
        if is_first:
            await updater.requires_input()
        else:
            await self.work(context, updater)
            await updater.complete()


class Replies(Scripted):
    """Answers with a message, without a task."""

    async def execute(self, context, queue):
        await queue.enqueue_event(TaskUpdater(queue, "", "").new_agent_message([Part(text="hello")]))


class Fails(Scripted):
    async def work(self, context, updater):
        raise ValueError("the tool is broken")
