"""What the tests of this adapter share: a tool that waits, and how a turn is stopped in it."""

import asyncio
import json

import pytest
from strands import Agent, tool
from strands.models.openai import OpenAIModel

import stoppable
from stoppable.adapters.strands import install
from stoppable.testing import Reply, ToolCall

DEADLINE = 60
PATIENT = stoppable.Policy(grace=2 * DEADLINE)  # a graceful stop never has to force a slow machine


@pytest.fixture(autouse=True)
def installed():
    install()


def asking(*names, **arguments):
    """Return an answer that calls each of the tools."""
    return Reply(tool_calls=[ToolCall(name=name, arguments=json.dumps(arguments), id=f"call-{name}") for name in names])


def agent_of(server, *tools, **options):
    model = OpenAIModel(client_args={"base_url": server.url, "api_key": "none"}, model_id="small")
    return Agent(model=model, tools=list(tools), callback_handler=None, **options)


class Booking:
    """A tool that waits until the test lets it go on."""

    def __init__(self):
        self.count = 0
        self.began, self.release = asyncio.Event(), asyncio.Event()

        @tool
        async def book() -> str:
            """Book a trip."""
            self.count += 1
            self.began.set()
            await self.release.wait()
            return "booked"

        self.book = book


async def stop_in_tool(turn, booking, mode):
    """Stop a turn in its tool, and return its run."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn, policy=PATIENT)
        await booking.began.wait()
        receipt = await handle.stop(mode)
        assert "tool:book" in receipt.in_flight
        if mode == "graceful":
            booking.release.set()
        outcome = await handle.outcome()
        assert outcome.status is stoppable.Status.STOPPED
        assert (outcome.rung is stoppable.Rung.SIGNAL) is (mode == "graceful")  # nothing had to be forced
        return handle


def shape(messages):
    """Write messages in short: the role, and what is in them."""
    words = []
    for message in messages:
        for block in message["content"]:
            if "toolUse" in block:
                words.append(f"calls {block['toolUse']['name']}")
            elif "toolResult" in block:
                words.append(block["toolResult"]["content"][0]["text"])
            else:
                words.append(f"{message['role']}: {block['text']}")
    return words
