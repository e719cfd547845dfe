"""The server of a2a-sdk that bench/server.py measures: an executor without a model, kept in memory."""

from __future__ import annotations

import asyncio
import os

os.environ["OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"] = "false"  # tracing is an option, and costs

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, Task, TaskState, TaskStatus
from starlette.applications import Starlette

from serving import serve


class Executor(AgentExecutor):
    """Tells as many events as the message asks for, one each millisecond, or waits for its cancel."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        started = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        await event_queue.enqueue_event(Task(id=context.task_id, context_id=context.context_id, status=started))
        count = int(context.get_user_input())
        if not count:
            await updater.start_work()
            await asyncio.sleep(3600)
        for n in range(count):
            await asyncio.sleep(0.001)
            await updater.update_status(TaskState.TASK_STATE_WORKING, metadata={"n": n, "text": "a few words"})
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def main() -> None:
    card = AgentCard(name="bench", version="1", capabilities=AgentCapabilities(streaming=True))
    handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore(), agent_card=card)
    serve(Starlette(routes=create_jsonrpc_routes(handler, "/rpc")))


if __name__ == "__main__":
    main()
