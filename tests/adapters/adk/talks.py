"""A session with an agent on another server somewhere in it."""

import asyncio
import contextlib

import httpx
from google.adk.agents.remote_a2a_agent import RemoteA2aAgent
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

import stoppable
from stoppable.adapters.adk import wrap

from .world import DEADLINE, Tools, World, agent

CARD = "{}/.well-known/agent-card.json"


def made(shape, far, world):
    """Return a root agent with another one, on a server, at some place in it."""
    if shape == "sub-agent":
        return SequentialAgent(name="sequence", sub_agents=[far, agent(world, "after")])
    if shape == "then a tool":
        return SequentialAgent(name="sequence", sub_agents=[far, agent(world, "after", Tools(world).async_tool)])
    if shape == "tool":
        return agent(world, "asker", AgentTool(far), asks=["far_agent"])
    if shape == "workflow":
        from google.adk.workflow import START, Workflow

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
async def talk(shape, card, *, is_wrapped=True, connected=lambda http: {"httpx_client": http}):
    """Yield a session with an agent that is reached by ``card``."""
    world = World()
    http = httpx.AsyncClient(timeout=DEADLINE)  # one of its own it never closes: 2.x works with a copy of the agent
    far = RemoteA2aAgent(name="far_agent", agent_card=card, **connected(http))
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


async def until(event):
    async with asyncio.timeout(DEADLINE):
        await event.wait()


def remotes(receipt):
    return [(node.name, str(node.fate)) for node in receipt.entries if node.kind == "remote"]
