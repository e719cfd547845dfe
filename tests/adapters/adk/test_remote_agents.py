"""Agents on other A2A servers, each a real one on a socket: a stop of the run here reaches their tasks there."""

import asyncio
import contextlib
import os
import signal

import httpx
import pytest
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

import stoppable
from stoppable.adapters.adk import names, wrap

from .world import DEADLINE, World, agent

if names.WORKFLOW is None:
    pytest.skip("google-adk 1.x needs an a2a-sdk of its own", allow_module_level=True)

from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.workflow import START, Workflow
from tests.adapters.a2a.executors import Scripted
from tests.adapters.a2a.serving import card_for, served
from tests.adapters.a2a.test_remote import process

MODES = ["graceful", "immediate"]
CARD = "{}/.well-known/agent-card.json"


def made(shape, far, world):
    """Return a root agent with another one, on a server, at some place in it."""
    if shape == "sub-agent":
        return SequentialAgent(name="sequence", sub_agents=[far, agent(world, "after")])
    if shape == "tool":
        return agent(world, "asker", AgentTool(far), asks=["far_agent"])
    if shape == "workflow":
        return Workflow(name="flow", edges=[(START, far)])
    return far


class Talk:
    """A session with a runner that is driven here."""

    def __init__(self, runner, supervisor, world):
        self.runner, self.supervisor, self.world = runner, supervisor, world
        self.told = []

    async def say(self, text):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        self.told = [event async for event in self.runner.run_async(user_id="ann", session_id="s", new_message=message)]
        return self.told

    @contextlib.asynccontextmanager
    async def asked(self):
        task = asyncio.create_task(self.say("go"))
        try:
            yield task
            async with asyncio.timeout(DEADLINE):
                await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def knows_the_task(self):
        """Wait until the id of the task there is known here."""
        async with asyncio.timeout(DEADLINE):
            while not any([(await self.supervisor.get(run.id)).metadata for run in await self.runs()]):
                await asyncio.sleep(0.01)

    async def acknowledged(self):
        async with asyncio.timeout(DEADLINE):
            while not any(run.status == "stopping" for run in await self.runs()):
                await asyncio.sleep(0.001)

    async def runs(self):
        return (await self.supervisor.list(stoppable.Filter())).runs

    async def stop(self, mode, reason=None):
        [run] = await self.supervisor.find("adk:app/ann/s")
        return await self.supervisor.stop(run.id, mode, reason, wait=DEADLINE)


@contextlib.asynccontextmanager
async def talk(shape, card, *, is_wrapped=True):
    world = World()
    http = httpx.AsyncClient(timeout=DEADLINE)  # one of its own it never closes: 2.x works with a copy of the agent
    far = RemoteA2aAgent(name="far_agent", agent_card=card, httpx_client=http)
    runner = InMemoryRunner(agent=made(shape, far, world), app_name="app")
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
    async with stoppable.Supervisor() as supervisor:
        if is_wrapped:
            wrap(runner, supervisor)
        try:
            yield Talk(runner, supervisor, world)
        finally:
            await runner.close()
            await http.aclose()


@contextlib.asynccontextmanager
async def remote():
    """Serve an executor with a supervisor of its own; yield it, its server and that supervisor."""
    inner = Scripted()
    async with stoppable.Supervisor() as supervisor, served(inner, supervisor) as server:
        yield inner, server, supervisor


async def until(event):
    async with asyncio.timeout(DEADLINE):
        await event.wait()


def remotes(receipt):
    return [(node.name, str(node.fate)) for node in receipt.nodes if node.kind == "remote"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["root", "sub-agent", "tool", "workflow"])
async def test_a_stop_cancels_the_task_of_an_agent_on_another_server(shape, mode):
    async with remote() as (inner, server, there), talk(shape, CARD.format(server.url)) as here:
        async with here.asked():
            await until(inner.working)
            receipt = await here.stop(mode, "enough")
        assert receipt.status == "stopped"
        assert remotes(receipt) == [("far_agent", "cancelled")]
        assert await server.state(inner.tasks[0]) == "CANCELED"
        [run] = (await there.list(stoppable.Filter(roots=True))).runs
        told = (await there.get(run.id)).receipt
        assert (told.mode, told.reason.message) == (mode, "enough")
        assert inner.effects == 0
        assert here.told[-1].error_code == "INVOCATION_ABORTED"

        inner.go.set()
        events = await here.say("again")
        assert not any(event.error_code or event.error_message for event in events), events
        assert shape == "tool" or await server.state(inner.tasks[1]) == "COMPLETED"


async def test_without_stoppable_the_agent_on_the_other_server_works_on():
    """What the adapter is for: ADK sends no cancel when its run is cancelled."""
    async with remote() as (inner, server, _), talk("sub-agent", CARD.format(server.url), is_wrapped=False) as here:
        task = asyncio.create_task(here.say("go"))
        await until(inner.working)
        task.cancel()
        await asyncio.wait([task])
        assert await server.state(inner.tasks[0]) == "WORKING"
        inner.go.set()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_server_that_does_not_answer_a_stop_leaves_the_run_lost_and_the_session_works_on(how):
    with process() as (url, pid):
        async with talk("tool", CARD.format(url.rstrip("/"))) as here:
            async with here.asked():
                await here.knows_the_task()
                os.kill(pid, signal.SIGSTOP)
                stopping = asyncio.create_task(here.stop("kill"))
                await here.acknowledged()
                os.kill(pid, how)
                receipt = await stopping
            assert receipt.status == "lost"
            assert remotes(receipt) == [("far_agent", "unreachable")]
            assert here.told[-1].error_code == "INVOCATION_ABORTED"
            assert "hello again" in str(await here.say("again"))


async def test_a_server_that_is_not_there_is_an_error_as_in_plain_adk_and_the_run_has_ended():
    async with talk("root", card_for("http://127.0.0.1:1/")) as here:
        await here.say("go")
        assert "A2A request failed" in here.told[-1].error_message
        [run] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
        async with asyncio.timeout(DEADLINE):
            assert (await here.supervisor.handle(run.id).outcome()).status == "completed"


async def test_a_server_that_dies_without_a_stop_is_an_error_as_in_plain_adk_and_its_task_is_lost():
    with process() as (url, pid):
        async with talk("root", CARD.format(url.rstrip("/"))) as here:
            async with here.asked():
                await here.knows_the_task()
                os.kill(pid, signal.SIGKILL)
            assert "A2A request failed" in here.told[-1].error_message
            [root] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
            async with asyncio.timeout(DEADLINE):
                assert (await here.supervisor.handle(root.id).outcome()).status == "completed"
            assert [run.status for run in await here.runs() if run.id != root.id] == ["lost"]
