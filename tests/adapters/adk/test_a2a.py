"""ADK's own A2A server (`to_a2a`) with a runner that is wrapped: its cancel ends the work, and seals the session."""

import asyncio
import contextlib
import json
import threading

import httpx
import pytest
import uvicorn
from google.adk.runners import InMemoryRunner

import stoppable
from stoppable.adapters.adk import names, wrap

from .serving import LIVE
from .test_stops import dangling
from .world import DEADLINE, Loader, World

pytestmark = pytest.mark.skipif(names.WORKFLOW is None, reason="google-adk 1.x needs an a2a-sdk of its own")


@contextlib.contextmanager
def a2a_served(shape):
    """Serve an agent by A2A; yield its address, the world, the runner and the supervisor."""
    from google.adk.a2a.utils.agent_to_a2a import to_a2a

    world, supervisor = World(), stoppable.Supervisor()
    agent = Loader(world).load_agent(shape)
    runner = wrap(InMemoryRunner(agent=agent, app_name="app"), supervisor)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with supervisor:
            yield

    app = to_a2a(agent, runner=runner, lifespan=lifespan)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, name="a2a server")
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        thread.join(0.005)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}", world, runner, supervisor
    finally:
        world.release_all()
        server.should_exit = True
        thread.join(DEADLINE)


class Caller:
    """A client that speaks JSON-RPC."""

    def __init__(self, url):
        self.http = httpx.AsyncClient(base_url=url, timeout=DEADLINE, verify=False, headers={"A2A-Version": "1.0"})

    async def ask(self, method, **params):
        answer = await self.http.post("/", json={"jsonrpc": "2.0", "id": "1", "method": method, "params": params})
        told = answer.json()
        assert "result" in told, told
        return told["result"]

    async def stream(self, text):
        message = {"role": "ROLE_USER", "messageId": text, "contextId": "talk", "parts": [{"text": text}]}
        body = {"jsonrpc": "2.0", "id": "1", "method": "SendStreamingMessage", "params": {"message": message}}
        async with self.http.stream("POST", "/", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    told = json.loads(line.removeprefix("data: "))
                    assert "result" in told, told
                    yield told["result"]


@pytest.mark.parametrize("shape", ["async_tool", "thread_tool"])
async def test_the_cancel_of_a2a_stops_the_run_and_leaves_no_call_without_an_answer(shape):
    with a2a_served(shape) as (url, world, runner, supervisor):
        caller = Caller(url)
        async with caller.http:
            known = asyncio.get_running_loop().create_future()

            async def asking():
                async for one in caller.stream("go"):
                    if "task" in one and not known.done():
                        known.set_result(one["task"]["id"])

            task = asyncio.create_task(asking())
            await world.saw(f"enter {shape}")
            async with asyncio.timeout(DEADLINE):
                task_id = await known
            answer = await caller.ask("CancelTask", id=task_id)
            assert answer["status"]["state"] == "TASK_STATE_CANCELED", answer
            [run] = (await supervisor.list(stoppable.Filter(roots=True))).runs
            async with asyncio.timeout(DEADLINE):
                while (await supervisor.get(run.id)).status == "running":
                    await asyncio.sleep(0.01)
            world.release(shape)  # the stop is graceful: what is in flight may finish
            async with asyncio.timeout(DEADLINE):
                await asyncio.wait([task])
                while not (record := await supervisor.get(run.id)).over:
                    await asyncio.sleep(0.01)
            assert (record.status, record.outcome.reason.kind) == ("stopped", "disconnect")
            assert [node.fate for node in record.receipt.entries if node.name == shape] == ["finished"]
            assert not (await supervisor.list(stoppable.Filter(status=LIVE))).runs
            session = await runner.session_service.get_session(
                app_name="app", user_id=run.owner, session_id=run.labels["adk.session"]
            )
            events = [event.model_dump(mode="json", by_alias=True, exclude_none=True) for event in session.events]
            assert not dangling(events)
            again = [one async for one in caller.stream("again")]
            assert "hello again" in str(again)
