"""An agent of Pydantic AI against a model server, with tools that wait for the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from stoppable.testing import ModelServer, Reply, ToolCall

SECONDS = 100  # only a test that hangs takes so long


def calls(*tools, text=""):
    """Return a reply that asks for tools; the id of each call is its name."""
    return Reply(text, tool_calls=[ToolCall(name=tool, id=tool) for tool in tools])


class World:
    """A model server with a script, and what the tools have done."""

    def __init__(self, server: ModelServer, client: AsyncOpenAI) -> None:
        self.server = server
        self.client = client
        self.begun: list[str] = []
        self.effects: list[str] = []
        self.release = threading.Event()

    def agent(self, *tools, **options):
        model = OpenAIChatModel("scripted", provider=OpenAIProvider(openai_client=self.client))
        return Agent(model, tools=tools, **options)

    async def book(self) -> str:
        """Book in a task, when the test says so."""
        self.begun.append("book")
        while not self.release.is_set():
            await asyncio.sleep(0.002)
        self.effects.append("book")
        return "booked"

    def pay(self) -> str:
        """Pay on a thread, when the test says so."""
        self.begun.append("pay")
        assert self.release.wait(SECONDS)
        self.effects.append("pay")
        return "paid"

    async def ask(self) -> str:
        """Return at once."""
        self.effects.append("ask")
        return "asked"

    def messages(self, number=-1):
        """Return the messages of a request, in short."""
        return [_short(one) for one in json.loads(self.server.requests[number].content)["messages"]]


async def until(condition):
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


def _short(message):
    content = message.get("content") or ""
    match message["role"]:
        case "assistant":
            ids = [call["id"] for call in message.get("tool_calls") or ()]
            return f"A {content}{ids or ''}"
        case "tool":
            return f"t {message['tool_call_id']}: {content}"
        case role:
            return f"{role[0]} {content}"


@contextlib.asynccontextmanager
async def world(*script, default=None):
    with ModelServer(*script, default=default or Reply("done")) as server:
        http = DefaultAsyncHttpxClient(verify=False)  # it reads no certificates, which takes longer than the test
        async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, http_client=http) as client:
            yield World(server, client)
