"""A server for the public A2A conformance suites (a2a-tck), with the adapter or plain: ``make test-a2a-conformance``.

The suites choose what a task does by the prefix of the message's id (``SCRIPTS``). The same executor is served with the
SDK's routes over JSON-RPC, REST and gRPC, in protocol 1.0 and 0.3, by the adapter's handler or, with ``--plain``, by
that of the SDK.

    python -m tests.adapters.a2a.system_under_test [--protocol 0.3] [--plain]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler, GrpcHandler, RequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Part,
    Task,
    TaskState,
    TaskStatus,
    a2a_pb2_grpc,
)
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

import stoppable
from stoppable.adapters.a2a.executor import StoppableExecutor
from stoppable.adapters.a2a.grpc_server import CLOSE_SECONDS, bind
from stoppable.adapters.a2a.handler import StoppableRequestHandler

Step = Callable[[TaskUpdater], Awaitable[None]]


# What a task does


def _completed(text: str | None = None) -> Step:
    return lambda task: task.complete(None if text is None else task.new_agent_message([Part(text=text)]))


def _artifact(part: Part) -> Step:
    return lambda task: task.add_artifact([part])


def _chunk(text: str, *, is_first: bool = False, is_last: bool = False) -> Step:
    return lambda task: task.add_artifact(
        [Part(text=text)], artifact_id="chunked", append=not is_first, last_chunk=is_last
    )


async def _wait(_task: TaskUpdater) -> None:
    """Stay working for as long as the suites want to subscribe again."""
    async with stoppable.boundary("tool", "wait"):
        await asyncio.sleep(2 * float(os.environ.get("TCK_STREAMING_TIMEOUT", "2.0")))


async def _rejected(task: TaskUpdater) -> None:
    await task.reject(task.new_agent_message([Part(text="rejected")]))


_WORKING: Step = TaskUpdater.start_work
_FILE = Part(raw=b"output", filename="output.txt", media_type="text/plain")
_LINK = Part(url="https://example.com/output.txt", filename="output.txt", media_type="text/plain")
_DATA = ParseDict({"data": {"key": "value", "count": 42}}, Part())
_MESSAGE = "tck-message-response"

SCRIPTS: dict[str, tuple[Step, ...]] = {
    "tck-complete-task": (_completed("Hello from TCK"),),
    "tck-input-required": (TaskUpdater.requires_input,),
    "tck-reject-task": (_rejected,),
    "tck-artifact-text": (_artifact(Part(text="Generated text content")), _completed()),
    "tck-artifact-file": (_artifact(_FILE), _completed()),
    "tck-artifact-file-url": (_artifact(_LINK), _completed()),
    "tck-artifact-data": (_artifact(_DATA), _completed()),
    "tck-stream-001": (_WORKING, _artifact(Part(text="Stream hello from TCK")), _completed()),
    "tck-stream-002": (_completed(),),
    "tck-stream-003": (_WORKING, _artifact(Part(text="Stream task lifecycle")), _completed()),
    "tck-stream-ordering-001": (_WORKING, _artifact(Part(text="Ordered output")), _completed()),
    "tck-stream-artifact-text": (_WORKING, _artifact(Part(text="Streamed text content")), _completed()),
    "tck-stream-artifact-file": (_WORKING, _artifact(_FILE), _completed()),
    "tck-stream-artifact-chunked": (
        _WORKING,
        _chunk("chunk-1 ", is_first=True),
        _chunk("chunk-2", is_last=True),
        _completed(),
    ),
    "test-resubscribe-message-id": (_WORKING, _wait, _completed()),
}
"""What each prefix of a message's id means; the longest one counts."""

_OTHERS: dict[str, tuple[Step, ...]] = {
    "1.0": (_WORKING, _artifact(Part(text="done")), _completed("done")),
    "0.3": (_WORKING, TaskUpdater.requires_input),  # that suite uses one prefix only, and continues its tasks
}
"""What any other message means to the suite for a protocol."""


class ConformanceExecutor(AgentExecutor):
    """Does what the id of the message asks for."""

    def __init__(self, protocol: str = "1.0") -> None:
        self._others = _OTHERS[protocol]

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Follow the script of a message."""
        current = context.current_task
        context_id = context.context_id if current is None else current.context_id
        task = TaskUpdater(event_queue, context.task_id or "", context_id or "")
        message_id = "" if context.message is None else context.message.message_id
        if message_id.startswith(_MESSAGE):
            await event_queue.enqueue_event(task.new_agent_message([Part(text="Direct message response")]))
            return
        if current is None:
            submitted = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            history = [] if context.message is None else [context.message]
            await event_queue.enqueue_event(
                Task(id=task.task_id, context_id=task.context_id, status=submitted, history=history)
            )
        prefix = max((prefix for prefix in SCRIPTS if message_id.startswith(prefix)), key=len, default=None)
        for step in self._others if prefix is None else SCRIPTS[prefix]:
            await step(task)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Say that it is canceled, as the SDK wants it; the adapter decides by itself."""
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


# The server


def _card(url: str, grpc_address: str, protocol: str) -> AgentCard:
    grpc_url = f"http://{grpc_address}" if protocol == "0.3" else grpc_address  # the suite for 0.3 wants a scheme
    interfaces = [
        AgentInterface(url=address, protocol_binding=binding, protocol_version=protocol)
        for address, binding in ((url + "/", "JSONRPC"), (url, "HTTP+JSON"), (grpc_url, "GRPC"))
    ]
    about = "does what the id of a message asks for"
    return AgentCard(
        name="conformance",
        description=about,
        version=stoppable.__version__,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id="conformance", name="conformance", description=about, tags=["conformance"])],
        supported_interfaces=interfaces,
    )


@contextlib.asynccontextmanager
async def _handler(card: AgentCard, protocol: str, *, plain: bool) -> AsyncIterator[RequestHandler]:
    executor = ConformanceExecutor(protocol)
    if plain:
        yield DefaultRequestHandler(executor, InMemoryTaskStore(), card)
        return
    async with stoppable.Supervisor() as supervisor:
        handler = StoppableRequestHandler(
            StoppableExecutor(executor, supervisor, name="conformance"), InMemoryTaskStore(), card
        )
        yield handler
        await handler.close()


async def _serve(options: argparse.Namespace) -> None:
    with socket.create_server((options.host, options.port)) as listener:
        rpc, grpc_port = bind(options.host, options.grpc_port)
        grpc_address = f"{options.host}:{grpc_port}"
        url = f"http://{options.host}:{listener.getsockname()[1]}"
        card = _card(url, grpc_address, options.protocol)

        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            async with _handler(card, options.protocol, plain=options.plain) as handler:
                app.router.routes.extend(
                    (
                        *create_agent_card_routes(card, cache_control="public, max-age=60"),
                        *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
                        *create_rest_routes(handler, enable_v0_3_compat=True),
                    )
                )
                a2a_pb2_grpc.add_A2AServiceServicer_to_server(GrpcHandler(handler), rpc)
                a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), rpc)
                await rpc.start()
                sys.stdout.write(f"{url} {grpc_address}\n")
                sys.stdout.flush()
                yield
            await rpc.stop(CLOSE_SECONDS)

        config = uvicorn.Config(
            Starlette(lifespan=lifespan), log_level="warning", timeout_graceful_shutdown=round(CLOSE_SECONDS)
        )
        await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    """Serve until a signal; prints the address of HTTP and that of gRPC."""
    parser = argparse.ArgumentParser(prog="python -m tests.adapters.a2a.system_under_test", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of JSON-RPC (at /), REST and the card; 0: a free one")
    parser.add_argument("--grpc-port", type=int, default=0, help="0: a free one; the card has it")
    parser.add_argument(
        "--protocol", choices=("1.0", "0.3"), default="1.0", help="of the card and the suite; both are served"
    )
    parser.add_argument("--plain", action="store_true", help="with the SDK alone, without the adapter")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
