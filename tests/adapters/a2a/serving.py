"""A real server with the SDK's routes, and the SDK's own client."""

import asyncio
import contextlib
import socket
import warnings
from dataclasses import dataclass

import httpx
import uvicorn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    from a2a.client import ClientConfig, ClientFactory
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
    from a2a.server.tasks import InMemoryTaskStore
    from a2a.types import (
        AgentCapabilities,
        AgentCard,
        AgentInterface,
        AgentSkill,
        CancelTaskRequest,
        GetTaskRequest,
        Message,
        Part,
        Role,
        SendMessageRequest,
        TaskState,
    )
from starlette.applications import Starlette

from stoppable import Policy
from stoppable.adapters.a2a import StoppableExecutor, StoppableRequestHandler

SECONDS = 30.0  # only a defect takes so long
# How stops are here unless a test says otherwise: nothing is given up because the machine is busy.
PATIENT = Policy(grace=SECONDS, interrupt=0.05, cancel=SECONDS, kill=SECONDS, blind_grace=0.0)


def card_for(url, binding="JSONRPC", version="1.0"):
    return AgentCard(
        name="scripted",
        description="does what a test says",
        version="1",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="any", name="any", description="any", tags=["test"])],
        supported_interfaces=[AgentInterface(url=url, protocol_binding=binding, protocol_version=version)],
    )


def state_of(task):
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_")


def message(text="go", task_id="", context_id="", message_id="m-1"):
    sent = Message(message_id=message_id, role=Role.ROLE_USER, parts=[Part(text=text)])
    sent.task_id, sent.context_id = task_id, context_id
    return SendMessageRequest(message=sent)


@dataclass
class Served:
    url: str
    handler: object
    client: object
    http: httpx.AsyncClient

    @property
    def executor(self):
        return self.handler.agent_executor

    async def get(self, task_id):
        return await self.client.get_task(GetTaskRequest(id=task_id))

    async def state(self, task_id):
        return state_of(await self.get(task_id))

    async def cancel(self, task_id, **metadata):
        request = CancelTaskRequest(id=task_id)
        if metadata:
            request.metadata.update(metadata)
        return await self.client.cancel_task(request)

    def stream(self, text="go", **ids):
        return Stream(self.client.send_message(message(text, **ids)))


class Stream:
    """A stream that is read in a task of its own."""

    def __init__(self, events):
        self.events, self.states, self.task_id = [], [], None
        self._known = asyncio.Event()
        self.task = asyncio.create_task(self._read(events))

    async def _read(self, events):
        try:
            async for event in events:
                self.events.append(event)
                for one in (event.task, event.status_update):
                    if one.HasField("status"):
                        self.states.append(state_of(one))
                self.task_id = (
                    self.task_id or event.task.id or event.status_update.task_id or event.artifact_update.task_id
                )
                if self.task_id:
                    self._known.set()
        finally:
            self._known.set()

    async def started(self):
        async with asyncio.timeout(SECONDS):
            await self._known.wait()
        if self.task.done():
            self.task.result()
        return self.task_id

    async def ended(self):
        async with asyncio.timeout(SECONDS):
            await self.task
        return self.states

    async def leave(self):
        self.task.cancel()
        await asyncio.wait({self.task})


@contextlib.asynccontextmanager
async def listening(app, lifespan="off", send_buffer=None):
    """Serve an app on a free port of this loop; ``send_buffer`` is what the system takes for a client, in bytes."""
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # connections inherit it
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan=lifespan, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with contextlib.ExitStack() as stack:
        stack.callback(listener.close)
        server.capture_signals = contextlib.nullcontext  # those of pytest stay
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            while not server.started:
                await asyncio.sleep(0.005)
            yield url
        finally:
            server.should_exit = True
            await task


def app_of(handler, card):
    return Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, "/", enable_v0_3_compat=True),
            *create_rest_routes(handler, enable_v0_3_compat=True),
        ]
    )


@contextlib.asynccontextmanager
async def served(inner, supervisor=None, *, store=None, **options):
    """Serve an executor: plain if there is no supervisor, else one that can be stopped."""
    app = Starlette()
    how = {"policy": PATIENT} | {name: options.pop(name) for name in ("policy", "mode", "name") if name in options}
    async with listening(app) as url, httpx.AsyncClient(timeout=SECONDS, limits=httpx.Limits()) as http:
        card = card_for(url + "/")
        store = store or InMemoryTaskStore()
        if supervisor is None:
            handler = DefaultRequestHandler(inner, store, card, **options)
        else:
            handler = StoppableRequestHandler(StoppableExecutor(inner, supervisor, **how), store, card, **options)
        app.router.routes.extend(app_of(handler, card).routes)
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        try:
            yield Served(url, handler, client, http)
        finally:
            await (handler.aclose() if supervisor is None else handler.close())
