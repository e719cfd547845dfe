"""An agent of Pydantic AI as an agent of stoppable: its parameters, results and conversations, also when served."""

from __future__ import annotations

import inspect
import subprocess
import sys

import httpx
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

import stoppable
from stoppable import Status
from stoppable.adapters.pydantic_ai import as_agent
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT
from stoppable.testing import Pause, Reply

from ... import served as serving
from .world import calls, until, world

DEADLINE = 300  # the import alone takes minutes on a machine that is busy enough


async def test_its_parameters_are_the_prompt_and_the_conversation_and_its_result_is_the_output():
    async with world() as w:
        agent = as_agent(w.agent(name="writer"))
        assert (agent.__name__, list(inspect.signature(agent).parameters)) == (
            "writer",
            ["user_prompt", "conversation_id"],
        )
        run = await stoppable.spawn(agent, "hello")
        outcome = await run.outcome()
        assert (outcome.status, outcome.result, outcome.partial) == (Status.COMPLETED, "done", "done")
        assert as_agent(w.agent(), "served").__name__ == "served"


class Trip(BaseModel):
    place: str


async def test_a_structured_output_is_plain_json():
    async def stream(messages, info):
        yield {0: DeltaToolCall(info.output_tools[0].name, '{"place": "Oslo"}')}

    agent = as_agent(Agent(FunctionModel(stream_function=stream), output_type=Trip))
    assert await (await stoppable.spawn(agent, "where?")).result() == {"place": "Oslo"}


async def test_deferred_calls_are_its_result_as_plain_json():
    async with world(calls("book")) as w:
        book = Tool(w.book, requires_approval=True)
        agent = as_agent(w.agent(book, output_type=[str, DeferredToolRequests]))
        result = await (await stoppable.spawn(agent, "book")).result()
        assert [call["tool_call_id"] for call in result["approvals"]] == ["book"]


async def test_a_conversation_goes_on_after_a_turn_that_was_stopped():
    async with world(Reply("hello ann"), calls("book")) as w:
        agent = as_agent(w.agent(w.book))
        await (await stoppable.spawn(agent, "I am ann", "1")).result()
        run = await stoppable.spawn(agent, "book it", "1")
        await until(lambda: w.begun)
        await run.stop("immediate")
        assert (await run.outcome()).status == Status.STOPPED
        assert await (await stoppable.spawn(agent, "and now?", "1")).result() == "done"
        assert w.messages() == [
            "u I am ann",
            "A hello ann",
            "u book it",
            "A ['book']",
            f"t book: {MAY_HAVE_TAKEN_EFFECT}",
            "u and now?",
        ]
        await (await stoppable.spawn(agent, "who am I?", "2")).result()
        assert w.messages() == ["u who am I?"]
        await (await stoppable.spawn(agent, "who am I?")).result()
        assert w.messages() == ["u who am I?"]


async def test_the_conversations_of_two_owners_do_not_meet():
    async with world(default=Reply("done")) as w, stoppable.Supervisor() as supervisor:
        agent = as_agent(w.agent())
        for owner in ("ann", "bob", "ann"):
            handle = await supervisor.start(agent, f"I am {owner}", "1", owner=owner)
            await handle.outcome()
        assert w.messages() == ["u I am ann", "A done", "u I am ann"]


async def test_its_text_so_far_is_the_partial_of_a_run_that_was_stopped():
    pause = Pause()
    async with world(Reply("one two three four", pause=pause)) as w:
        run = await stoppable.spawn(as_agent(w.agent()), "tell", "1")
        pause.release(2)
        await until(lambda: "two" in str(run.run.partial))
        await run.stop()
        pause.release()
        outcome = await run.outcome()
        assert outcome.status == Status.STOPPED
        assert outcome.partial.startswith("one two")
        pause.end()


MODULE = """
import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel


async def answer(messages, info):
    if messages[-1].parts[-1].content == "a story":
        yield "once "
        yield "upon a time"
        await asyncio.sleep(600)
    else:
        yield f"after {[part.content for message in messages[:-1] for part in message.parts]}"


assistant = Agent(FunctionModel(stream_function=answer))
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a module that has an agent, which knows nothing of stoppable."""
    (tmp_path / "my_agent.py").write_text(MODULE)
    return tmp_path


def follow(http, run_id, kind):
    """Read the events of a run up to one of a kind, or all of them."""
    with http.stream("GET", f"/runs/{run_id}/events") as events:
        assert any(line == f"event: {kind}" for line in events.iter_lines()) is (kind is not None)


@pytest.mark.timeout(DEADLINE + 120)
def test_the_command_serves_an_agent_and_its_conversation_goes_on_after_a_stop(folder):
    command = [sys.executable, "-m", "stoppable", "serve", "my_agent:assistant", "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    served = serving.Server(process)
    try:
        with httpx.Client(base_url=served.url(within=DEADLINE), timeout=DEADLINE) as http:
            (agent,) = http.get("/agents").json()["agents"]
            assert agent["name"] == "assistant"
            assert [one["name"] for one in agent["parameters"]] == ["user_prompt", "conversation_id"]
            said = {"user_prompt": "a story", "conversation_id": "1"}
            run_id = http.post("/runs", json={"agent": "assistant", "input": said, "key": "chat:1"}).json()["id"]
            follow(http, run_id, "partial")
            http.post(f"/runs/{run_id}/stop", json={})
            follow(http, run_id, None)
            record = http.get(f"/runs/{run_id}").json()
            assert record["status"] == "stopped"
            text = record["outcome"]["partial"]
            said["user_prompt"] = "go on"
            run_id = http.post("/runs", json={"agent": "assistant", "input": said, "key": "chat:1"}).json()["id"]
            follow(http, run_id, None)
            assert http.get(f"/runs/{run_id}").json()["outcome"]["result"] == f"after {['a story', text]}"
    finally:
        process.kill()
        process.wait(DEADLINE)
        served.close()


@pytest.mark.timeout(DEADLINE + 30)
@pytest.mark.parametrize("command", ["run", "check"])
def test_the_command_runs_and_checks_an_agent(folder, command):
    done = subprocess.run(
        [sys.executable, "-m", "stoppable", command, "my_agent:assistant", "hello"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "run":
        assert "after []" in done.stdout
