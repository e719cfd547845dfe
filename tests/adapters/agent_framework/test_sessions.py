"""What a stop leaves in the session of an agent, and the agent as an agent of stoppable."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys

import httpx
import pytest
from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    InMemoryHistoryProvider,
    Message,
    ResponseStream,
)

import stoppable
from stoppable import Status
from stoppable.adapters.agent_framework import Stoppable, as_agent
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT

from ... import served as serving

DEADLINE = 300  # the import alone takes minutes on a machine that is busy enough


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Asks for the tool `book` once, then says how many messages it got."""

    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        has_asked = any(content.type == "function_call" for message in messages for content in message.contents)
        call = Content.from_function_call("call-1", "book", arguments={})
        content = Content.from_text(f"{len(messages)} messages") if has_asked else call
        if stream:
            return ResponseStream(self._updates(content), finalizer=ChatResponse.from_updates)
        return self._response(content)

    async def _response(self, content):
        return ChatResponse(messages=[Message("assistant", [content])])

    async def _updates(self, content):
        yield ChatResponseUpdate(contents=[content], role="assistant")


class Tool:
    """A tool that waits, and says when it has begun."""

    def __init__(self):
        self.begun = asyncio.Event()

    def function(self):
        async def book() -> str:
            """Book a trip."""
            self.begun.set()
            await asyncio.sleep(600)
            return "booked"

        return book


async def stop_in_tool(tool, function, *args, **options):
    """Start a function as a run, and stop it while its agent is in the tool."""
    run = await stoppable.spawn(function, *args, **options)
    async with asyncio.timeout(DEADLINE):
        await tool.begun.wait()
        await run.stop("immediate")
        outcome = await run.outcome()
    assert outcome.status == Status.STOPPED
    return run


def shapes(messages):
    return [(message.role, [content.type for content in message.contents]) for message in messages]


async def ask(agent, text, session):
    return await agent.run(text, session=session)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["user", "assistant", "tool"]),
        ({"store_inputs": False}, ["assistant", "tool"]),
        ({"store_outputs": False}, ["user"]),
    ],
)
async def test_a_stopped_turn_is_saved_as_the_history_provider_is_configured(options, expected):
    tool, provider = Tool(), InMemoryHistoryProvider(**options)
    agent = Agent(Client(), tools=[tool.function()], context_providers=[provider], middleware=[Stoppable()])
    session = agent.create_session()
    await stop_in_tool(tool, ask, agent, "book", session)
    messages = await provider.get_messages(session.session_id, state=session.state[provider.source_id])
    assert [message.role for message in messages] == expected
    if expected[-1] == "tool":
        assert messages[-1].contents[0].result == MAY_HAVE_TAKEN_EFFECT


async def test_an_agent_without_a_session_is_stopped_too():
    tool = Tool()
    agent = Agent(Client(), tools=[tool.function()], middleware=[Stoppable()])
    await stop_in_tool(tool, ask, agent, "book", None)


async def test_outside_a_run_it_does_nothing():
    async def book() -> str:
        """Book a trip."""
        return "booked"

    agent = Agent(Client(), tools=[book], middleware=[Stoppable()])
    assert (await agent.run("book", session=agent.create_session())).text == "3 messages"


async def test_a_turn_that_completes_is_saved_once():
    async def book() -> str:
        """Book a trip."""
        return "booked"

    agent = Agent(Client(), tools=[book], middleware=[Stoppable()])
    session = agent.create_session()
    for _ in range(2):
        run = await stoppable.spawn(ask, agent, "book", session)
        response = await run.result()
    assert response.text == "5 messages"


# As an agent of stoppable


async def test_its_parameters_are_the_message_and_the_session():
    agent = as_agent(Agent(Client(), name="booker"))
    assert (agent.__name__, list(inspect.signature(agent).parameters)) == ("booker", ["message", "session_id"])
    assert as_agent(Agent(Client()), "served").__name__ == "served"


async def test_a_session_goes_on_after_a_turn_that_was_stopped_and_belongs_to_its_owner():
    tool = Tool()
    agent = as_agent(Agent(Client(), tools=[tool.function()]))
    await stop_in_tool(tool, agent, "book", "1")
    run = await stoppable.spawn(agent, "and now?", "1")
    outcome = await run.outcome()
    assert (outcome.result, outcome.partial) == ("4 messages", "4 messages")
    async with stoppable.Supervisor() as supervisor:
        tool.begun.clear()
        handle = await supervisor.start(agent, "book", "1", owner="bob")  # a new session, so the tool is asked for
        async with asyncio.timeout(DEADLINE):
            await tool.begun.wait()
        await handle.stop("immediate")
        assert (await handle.outcome()).status == Status.STOPPED


MODULE = """
from agent_framework import Agent, BaseChatClient, ChatMiddlewareLayer, ChatResponse, ChatResponseUpdate, Content
from agent_framework import FunctionInvocationLayer, ResponseStream


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    def _inner_get_response(self, *, messages, stream, options, **kwargs):
        async def updates():
            yield ChatResponseUpdate(contents=[Content.from_text(f"{len(messages)} messages")], role="assistant")

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


assistant = Agent(Client())
"""


@pytest.mark.timeout(DEADLINE + 120)
def test_the_command_serves_an_agent(tmp_path):
    (tmp_path / "my_agent.py").write_text(MODULE)
    command = [sys.executable, "-m", "stoppable", "serve", "my_agent:assistant", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    served = serving.Server(process)
    try:
        with httpx.Client(base_url=served.url(within=DEADLINE), timeout=DEADLINE) as http:
            (agent,) = http.get("/agents").json()["agents"]
            assert [one["name"] for one in agent["parameters"]] == ["message", "session_id"]
            for expected in ("1 messages", "3 messages"):
                start = {"agent": "assistant", "input": {"message": "hello", "session_id": "1"}}
                run_id = http.post("/runs", json=start).json()["id"]
                with http.stream("GET", f"/runs/{run_id}/events") as events:
                    assert "event: partial" in list(events.iter_lines())  # all of them: its end is the last
                assert http.get(f"/runs/{run_id}").json()["outcome"]["result"] == expected
    finally:
        process.kill()
        process.wait(DEADLINE)
        served.close()
