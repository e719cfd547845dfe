"""Agents of smolagents with a scripted model, and a tool that waits until the test lets it go on."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import ClassVar

from smolagents import CodeAgent, OpenAIModel, Tool, ToolCallingAgent
from tests.adapters.scenarios.history import is_valid
from tests.waiting import until

import stoppable
from stoppable.testing import Reply, ToolCall

DEADLINE = 60
DONE = Reply(tool_calls=[ToolCall(name="final_answer", arguments='{"answer": "Done."}', id="call-end")])


class Booking(Tool):
    """Books trips; the trips to the cities in ``held`` wait."""

    name = "book"
    description = "Books a trip."
    inputs: ClassVar = {"city": {"type": "string", "description": "Where to."}}
    output_type = "string"

    def __init__(self, *held):
        super().__init__()
        self.held = held
        self.begun, self.booked = [], []
        self.release = threading.Event()

    def forward(self, city):
        self.begun.append(city)
        if city in self.held:
            assert self.release.wait(DEADLINE), "the test never released it"
        self.booked.append(city)
        return f"booked {city}"


def asking(*cities, text="", **options):
    """Return an answer that asks for a trip to each of the cities."""
    calls = [ToolCall(name="book", arguments=json.dumps({"city": city}), id=f"call-{city}") for city in cities]
    return Reply(text, tool_calls=calls, **options)


def writing(code, **options):
    """Return an answer that is code."""
    return Reply(f"<code>\n{code}\n</code>", **options)


_models = []


def model(server):
    _models.append(OpenAIModel("small", api_base=server.url, api_key="none", client_kwargs={"max_retries": 0}))
    return _models[-1]


def close_models():
    """Close the connections of the models, which smolagents never does."""
    while _models:
        _models.pop().client.close()


def heard_by(agent):
    """Return a list of what the model of an agent has said, when the agent has taken it."""
    heard, plain = [], agent.model.generate_stream

    def generate_stream(*args, **kwargs):
        for delta in plain(*args, **kwargs):
            yield delta
            heard.append(delta.content)

    agent.model.generate_stream = generate_stream
    return heard


def caller(server, *tools, **options):
    """Return an agent that calls tools."""
    return ToolCallingAgent(tools=list(tools), model=model(server), verbosity_level=0, **options)


def coder(server, *tools, **options):
    """Return an agent that writes code, with a time limit that only a test that hangs reaches."""
    options = {"executor_kwargs": {"timeout_seconds": DEADLINE}, **options}
    return CodeAgent(tools=list(tools), model=model(server), verbosity_level=0, **options)


def talk(agent, text="A trip, please.", **options):
    """Return a body that is one turn of a conversation."""
    return lambda: agent.run(text, reset=False, **options)


async def stop(body, condition, mode="graceful", release=lambda: None, errors=()):
    """Stop a turn when something is so, and return its run after its end, with the first receipt."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(body)
        await until(condition, DEADLINE)
        receipt = await handle.stop(mode)
        release()
        outcome = await handle.outcome()
    assert outcome.status is stoppable.Status.STOPPED, outcome
    assert outcome.error is None or isinstance(outcome.error, errors), outcome
    return handle, receipt


def memory_of(agent):
    """Return what the next turn gets to read, after the system prompt, as pairs of role and text."""
    messages = agent.write_memory_to_messages()[1:]
    return [(message.role.value, message.content[0]["text"]) for message in messages]


async def ask_again(server, agent):
    """Let the user write again, outside a run, and return the messages that the model got."""
    assert await asyncio.to_thread(talk(agent, "Still there?")) == "Done."
    messages = server.requests[-1].messages
    assert is_valid(messages)
    return messages
