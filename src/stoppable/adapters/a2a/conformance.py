"""What ``python -m stoppable.testing.a2a_sut`` serves to the public A2A conformance suites (a2a-tck).

The suites choose what a task does by the prefix of the message's id (``SCRIPTS``). It is served by the adapter over
JSON-RPC, REST and gRPC, in protocol 1.0 and 0.3. Where the SDK alone does not answer as the suites expect, a small
layer does: the age of the card, the content type of JSON-RPC requests, the version and the statuses of gRPC calls.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import uvicorn
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import GrpcHandler
from a2a.server.request_handlers.response_helpers import build_error_response
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
from a2a.utils.errors import (
    A2A_ERROR_REASONS,
    A2AError,
    ContentTypeNotSupportedError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from a2a.utils.grpc_status import status_to_grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.json_format import ParseDict
from google.rpc.code_pb2 import UNIMPLEMENTED
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as RpcStatus
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import stoppable
from stoppable.adapters.a2a.executor import StoppableExecutor
from stoppable.adapters.a2a.grpc_server import CLOSE_SECONDS, Versions, bound
from stoppable.adapters.a2a.handler import StoppableRequestHandler

if TYPE_CHECKING:
    import grpc

__all__ = ["SCRIPTS", "ConformanceExecutor", "main"]

Step = Callable[[TaskUpdater], Awaitable[None]]
Endpoint = Callable[[Request], Awaitable[Response]]

_CACHED = "public, max-age=60"
_UNIMPLEMENTED = (PushNotificationNotSupportedError, UnsupportedOperationError, VersionNotSupportedError)


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
    """Does what the id of the message asks for; the adapter cancels it."""

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
        """Leave it to the adapter."""


# HTTP


def _routes(handler: StoppableRequestHandler, card: AgentCard) -> list[BaseRoute]:
    describe = create_agent_card_routes(card, cache_control=_CACHED)[0]
    rpc = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True)[0]
    return [
        Route(describe.path, _dated(describe.endpoint), methods=["GET"]),
        Route("/", _only_json(rpc.endpoint), methods=["POST"]),
        *create_rest_routes(handler, enable_v0_3_compat=True),
    ]


def _dated(inner: Endpoint) -> Endpoint:
    """Add the age of the card to the response."""
    since = formatdate(usegmt=True)

    async def endpoint(request: Request) -> Response:
        answer = await inner(request)
        answer.headers["Last-Modified"] = since
        return answer

    return endpoint


def _only_json(inner: Endpoint) -> Endpoint:
    """Refuse a body that is not declared as JSON; the SDK would answer that it cannot be parsed."""

    async def endpoint(request: Request) -> Response:
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given == "application/json":
            return await inner(request)
        refused = ContentTypeNotSupportedError(message=f"Content-Type is {given!r:.100}: use application/json")
        return JSONResponse(build_error_response(None, refused))

    return endpoint


# gRPC


class _Grpc(GrpcHandler):
    """Answers with the statuses of 1.0.0, which the suite checks; those of the SDK are of 1.0.1."""

    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext) -> None:
        """End a call with an error."""
        if not isinstance(error, _UNIMPLEMENTED):
            await super().abort_context(error, context)
            return
        info = AnyMessage()
        info.Pack(ErrorInfo(reason=A2A_ERROR_REASONS[type(error)], domain="a2a-protocol.org"))
        told = status_to_grpc(RpcStatus(code=UNIMPLEMENTED, message=error.message, details=[info]))
        context.set_trailing_metadata(tuple(told.trailing_metadata))
        await context.abort(told.code, told.details)


# The server


def _card(url: str, grpc_address: str, protocol: str) -> AgentCard:
    interfaces = [
        AgentInterface(url=address, protocol_binding=binding, protocol_version=protocol)
        for address, binding in ((url + "/", "JSONRPC"), (url, "HTTP+JSON"), (grpc_address, "GRPC"))
    ]
    about = "does what the id of a message asks for"
    return AgentCard(
        name="stoppable",
        description=about,
        version=stoppable.__version__,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id="conformance", name="conformance", description=about, tags=["conformance"])],
        supported_interfaces=interfaces,
    )


async def _serve(host: str, port: int, grpc_port: int, protocol: str) -> None:
    with socket.create_server((host, port)) as listener:
        rpc, grpc_port = bound(host, grpc_port)
        grpc_address = f"{host}:{grpc_port}"
        url = f"http://{host}:{listener.getsockname()[1]}"
        card, supervisor = _card(url, grpc_address, protocol), stoppable.Supervisor()
        handler = StoppableRequestHandler(
            StoppableExecutor(ConformanceExecutor(protocol), supervisor, name="conformance"), InMemoryTaskStore(), card
        )
        a2a_pb2_grpc.add_A2AServiceServicer_to_server(_Grpc(handler, Versions()), rpc)
        a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(CompatGrpcHandler(handler), rpc)

        @contextlib.asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with supervisor:
                await rpc.start()
                sys.stdout.write(f"{url} {grpc_address}\n")
                sys.stdout.flush()
                yield
                await handler.close()
                await rpc.stop(CLOSE_SECONDS)

        app = Starlette(routes=_routes(handler, card), lifespan=lifespan)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=round(CLOSE_SECONDS))
        await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    """Serve until a signal; prints the address of HTTP and that of gRPC."""
    parser = argparse.ArgumentParser(prog="python -m stoppable.testing.a2a_sut", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9999, help="of JSON-RPC (at /), REST and the card; 0: a free one")
    parser.add_argument("--grpc-port", type=int, default=0, help="0: a free one; the card has it")
    parser.add_argument(
        "--protocol", choices=("1.0", "0.3"), default="1.0", help="of the card and the suite; both are served"
    )
    given = parser.parse_args()
    asyncio.run(_serve(given.host, given.port, given.grpc_port, given.protocol))


if __name__ == "__main__":
    main()
