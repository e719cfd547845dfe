"""google-adk 1.x has the client of a2a-sdk 0.3: its tasks are nodes of the tree there too, on a plain server of 0.3."""

import asyncio
import contextlib
import socket

import httpx
import pytest
import uvicorn

import stoppable
from stoppable.adapters.adk import names

from .talks import CARD, remotes, talk, until
from .world import DEADLINE

if names.WORKFLOW is not None:
    pytest.skip("this google-adk takes a newer a2a-sdk", allow_module_level=True)

from a2a.client import ClientConfig, ClientFactory
from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart, UnsupportedOperationError
from a2a.utils.errors import ServerError

MODES = ["graceful", "immediate"]


class Scripted(AgentExecutor):
    """Begins, waits until it is let go, and completes; ``cancel`` is what its cancel does."""

    def __init__(self, cancel=TaskUpdater.cancel):
        self.working, self.go, self.tasks, self.ended = asyncio.Event(), asyncio.Event(), [], asyncio.Event()
        self._cancel = cancel

    async def execute(self, context, event_queue):
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        self.tasks.append(context.task_id)
        await updater.submit()
        await updater.start_work()
        self.working.set()
        await self.go.wait()
        await updater.add_artifact([Part(root=TextPart(text="found"))])
        await updater.complete()
        self.ended.set()

    async def cancel(self, context, event_queue):
        await self._cancel(TaskUpdater(event_queue, context.task_id, context.context_id))


async def refuses(_):
    raise ServerError(error=UnsupportedOperationError())


async def hangs(_):
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def plain_server(inner):
    """Serve an executor with the SDK alone; yield the address and the task store."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = "http://{}:{}".format(*listener.getsockname()[:2])
    skill = AgentSkill(id="any", name="any", description="any", tags=["test"])
    modes = ["text/plain"]
    card = AgentCard(
        name="scripted",
        description="does what a test says",
        version="1",
        url=url + "/",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=modes,
        default_output_modes=modes,
        skills=[skill],
    )
    store = InMemoryTaskStore()
    app = A2AStarletteApplication(card, DefaultRequestHandler(inner, store)).build()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    server.capture_signals = contextlib.nullcontext  # those of pytest stay
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield url, store
    finally:
        inner.go.set()
        server.should_exit = True
        await serving
        listener.close()


def streaming(http):
    """Make a client that learns the id of a task at once; that of a RemoteA2aAgent waits for the whole answer."""
    return {"a2a_client_factory": ClientFactory(ClientConfig(httpx_client=http, streaming=True))}


async def state_of(store, task_id):
    return str((await store.get(task_id)).status.state.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["root", "sub-agent", "tool"])
async def test_a_stop_cancels_the_task_that_a_streaming_client_has_started(shape, mode):
    inner = Scripted()
    async with plain_server(inner) as (url, store), talk(shape, CARD.format(url), connected=streaming) as here:
        async with here.asked():
            await here.knows_the_task()
            receipt = await here.stop(mode, "enough")
        assert receipt.status == "stopped"
        assert remotes(receipt) == [("far_agent", "cancelled")]
        assert await state_of(store, inner.tasks[0]) == "canceled"
        assert here.told[-1].error_code == "INVOCATION_ABORTED"

        inner.go.set()
        events = await here.say("again")
        assert not any(event.error_code or event.error_message for event in events), events


@pytest.mark.parametrize("shape", ["root", "sub-agent", "tool"])
async def test_a_task_whose_id_nobody_knows_is_unreachable_and_the_run_lost(shape):
    inner = Scripted()
    async with plain_server(inner) as (url, store), talk(shape, CARD.format(url)) as here:
        async with here.asked():
            await until(inner.working)
            receipt = await here.stop("kill")
        assert receipt.status == "lost"
        assert remotes(receipt) == [("far_agent", "unreachable")]
        assert await state_of(store, inner.tasks[0]) == "working"
        inner.go.set()
        await until(inner.ended)
        events = await here.say("again")
        assert not any(event.error_code or event.error_message for event in events), events


async def test_a_task_that_ends_within_the_grace_has_finished():
    inner = Scripted()
    async with plain_server(inner) as (url, _), talk("sub-agent", CARD.format(url)) as here:
        async with here.asked():
            await until(inner.working)
            stopping = asyncio.create_task(here.stop("graceful"))
            await here.acknowledged()
            inner.go.set()
            receipt = await stopping
        assert receipt.status == "stopped"
        assert remotes(receipt) == [("far_agent", "finished")]


@pytest.mark.parametrize("connected", [None, streaming])
async def test_a_task_that_ended_before_the_stop_is_not_in_the_receipt(connected):
    inner = Scripted()
    inner.go.set()
    how = {} if connected is None else {"connected": connected}
    async with plain_server(inner) as (url, _), talk("then a tool", CARD.format(url), **how) as here:
        async with here.asked():
            await here.world.saw("enter async_tool")
            receipt = await here.stop("immediate")
        assert receipt.status == "stopped"
        assert remotes(receipt) == []
        assert [node.name for node in receipt.entries if node.kind == "tool"] == ["async_tool"]


@pytest.mark.parametrize(("cancel", "fate"), [(refuses, "abandoned"), (hangs, "unreachable")])
async def test_a_server_that_does_not_cancel_leaves_the_run_lost(cancel, fate):
    inner = Scripted(cancel)
    async with plain_server(inner) as (url, _), talk("root", CARD.format(url), connected=streaming) as here:
        async with here.asked():
            await here.knows_the_task()
            receipt = await here.stop("kill")
        assert receipt.status == "lost"
        assert remotes(receipt) == [("far_agent", fate)]


async def test_a_server_that_is_not_there_is_an_error_as_in_plain_adk_and_the_run_has_ended():
    async with talk("root", CARD.format("http://127.0.0.1:1")) as here:
        events = await here.say("go")
        assert "Failed to initialize remote A2A agent" in events[-1].error_message
        [run] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
        async with asyncio.timeout(DEADLINE):
            assert (await here.supervisor.handle(run.id).outcome()).status == "completed"


async def test_a_server_that_goes_away_before_the_message_has_no_task_that_could_be_lost():
    async with httpx.AsyncClient(timeout=30) as http, plain_server(Scripted()) as (url, _):
        card = AgentCard.model_validate((await http.get(CARD.format(url))).json())
    async with talk("root", card) as here:
        events = await here.say("go")
        assert "A2A request failed" in events[-1].error_message
        [root] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
        async with asyncio.timeout(DEADLINE):
            assert (await here.supervisor.handle(root.id).outcome()).status == "completed"
