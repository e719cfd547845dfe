"""Agents of AutoGen whose models are scripted, and a tool that waits until the test lets it go on."""

import asyncio
import contextlib
import json

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from bench.frameworks_unmodified.with_autogen_agentchat import INFO

import stoppable
from stoppable.testing import ModelServer, Reply, ToolCall

DEADLINE = 60


class World:
    """Makes agents, each with a model server of its own, and closes everything at the end."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self._clients = []
        self.servers = {}

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        for client in self._clients:
            await client.close()
        self._stack.close()

    def client(self, name, *replies):
        server = self._stack.enter_context(ModelServer(*replies, default=Reply("Fine.")))
        self.servers[name] = server
        self._clients.append(
            OpenAIChatCompletionClient(model="small", base_url=server.url, api_key="none", model_info=INFO)
        )
        return self._clients[-1]

    def agent(self, name, *replies, **options):
        options = {"max_tool_iterations": 10, "description": name, **options}
        return AssistantAgent(name, self.client(name, *replies), **options)

    def messages(self, name):
        """Return what the model of an agent got last."""
        return self.servers[name].requests[-1].messages


class Booking:
    """A tool that waits until the test lets it go on."""

    def __init__(self):
        self.count = 0
        self.began, self.release = asyncio.Event(), asyncio.Event()

    async def book(self, city: str) -> str:
        """Book a trip."""
        self.count += 1
        self.began.set()
        await self.release.wait()
        return f"booked {city}"


def asking(name, call_id="call-1", **arguments):
    return Reply(tool_calls=[ToolCall(name=name, arguments=json.dumps(arguments), id=call_id)])


async def ask(runner, text):
    """Run an agent or a team, as a user does."""
    return await runner.run(task=text)


async def go_on(runner, text="Are you still there?"):
    """Run an agent or a team again, in a run of its own, and return the result."""
    async with asyncio.timeout(DEADLINE):
        return await (await stoppable.spawn(ask, runner, text)).result()


async def stop_in(runner, began, mode, release=None):
    """Stop a turn when something in it has begun, and return its run and the receipt of the stop."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(ask, runner, "A trip, please.")
        await began.wait()
        receipt = await handle.stop(mode)
        if release is not None and mode == "graceful":
            release.set()
        outcome = await handle.outcome()
        assert (outcome.status, outcome.error) == ("stopped", None)
        return handle, receipt
