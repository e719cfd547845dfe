"""An agent of smolagents is served as it is, and its conversations go on after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from smolagents import AgentMemory
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.smolagents import as_agent
from stoppable.server import create_app
from stoppable.testing import ModelServer, Pause, Reply, assert_stops_everywhere

from .world import DEADLINE, DONE, Booking, asking, caller, coder, writing

CODED = writing('final_answer("Done.")')


@contextlib.asynccontextmanager
async def served(agent):
    """Serve an agent in this process."""
    async with stoppable.Supervisor() as supervisor:
        transport = httpx.ASGITransport(create_app(supervisor, {"chat": agent}))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield http, supervisor


async def start(http, message, **more):
    answer = await http.post("/runs", json={"agent": "chat", "input": {"message": message, "session_id": "1"}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_served_agent_has_a_partial_is_stopped_by_its_key_and_talks_on():
    pause = Pause()
    with ModelServer(Reply("one two three", pause=pause), default=DONE) as server:
        async with served(caller(server, stream_outputs=True)) as (http, supervisor):
            (agent,) = (await http.get("/agents")).json()["agents"]
            assert [each["name"] for each in agent["parameters"]] == ["message", "session_id"]
            run_id = await start(http, "Count.", key="chat:1")
            pause.release(2)
            await until(lambda: any(run.id == run_id and "two" in str(run.partial) for run in supervisor.runs))
            await supervisor.stop(key="chat:1", mode="immediate", wait=30)
            record = (await http.get(f"/runs/{run_id}")).json()
            assert (record["status"], record["outcome"]["partial"]) == ("stopped", "one two")
            again = await start(http, "Go on.")
            await until(lambda: all(run.id != again for run in supervisor.runs))
            record = (await http.get(f"/runs/{again}")).json()
            assert (record["status"], record["outcome"]["result"]) == ("completed", "Done.")
            assert texts_of(server.requests[-1].messages, "assistant") == ["one two"]


async def test_the_same_session_id_of_two_owners_is_two_conversations():
    with ModelServer(default=DONE) as server:
        agent = as_agent(caller(server))
        async with stoppable.Supervisor() as supervisor:
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
                assert await handle.result() == "Done."
        said = [" ".join(texts_of(request.messages, "user")) for request in server.requests]
        assert [(each.count("ann"), each.count("bob")) for each in said] == [(1, 0), (0, 1), (2, 0)]


async def test_code_of_two_conversations_has_its_own_variables():
    with ModelServer(writing("x = 1\nfinal_answer(x)"), writing("final_answer(x)"), CODED) as server:
        agent = as_agent(coder(server))
        async with stoppable.Supervisor() as supervisor:
            for session_id, result in (("1", 1), ("2", "Done.")):
                handle = await supervisor.start(agent, "Count.", session_id=session_id)
                assert await handle.result() == result
        assert "The variable `x` is not defined" in str(server.requests[-1].messages)


async def test_a_message_waits_for_the_turn_before_it_and_can_be_stopped_meanwhile():
    booking = Booking("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = as_agent(caller(server, booking))
        async with stoppable.Supervisor() as supervisor:
            first = await supervisor.start(agent, "A trip.", session_id="1")
            await until(lambda: booking.begun)
            second = await supervisor.start(agent, "And?", session_id="1")
            third = await supervisor.start(agent, "Well?", session_id="1")
            await second.stop()
            assert (await second.outcome()).status is stoppable.Status.STOPPED
            assert len(server.requests) == 1
            booking.release.set()
            assert [await first.result(), await third.result()] == ["Done.", "Done."]
        said = " ".join(texts_of(server.requests[-1].messages, "user"))
        assert ("A trip." in said, "And?" in said, "Well?" in said) == (True, False, True)


async def test_memories_may_be_the_users_own():
    memory = AgentMemory("")
    with ModelServer(default=DONE) as server:
        agent = as_agent(caller(server, name="front", description="Talks."), memory=lambda session_id: memory)
        assert (agent.__name__, await asyncio.to_thread(agent, "Hello.", "1")) == ("front", "Done.")
    assert [type(step).__name__ for step in memory.steps] == ["TaskStep", "ActionStep"]


@pytest.mark.parametrize("kind", [caller, coder])
async def test_a_served_agent_stops_everywhere(kind):
    again = asking("Rome") if kind is caller else writing('book("Rome")')
    with ModelServer(default=again) as server:
        agent = as_agent(kind(server, Booking(), max_steps=2))
        assert await assert_stops_everywhere(agent, "A trip.", within=DEADLINE) >= 5


def test_an_object_of_a_module_of_the_user_is_left_alone():
    kind = type("Mine", (), {"__module__": "my.smolagents.agents", "__call__": lambda self: None})
    assert adapt_object(kind()) is None


APP = """
from smolagents import OpenAIModel, ToolCallingAgent

model = OpenAIModel("small", api_base="URL", api_key="none")
agent = ToolCallingAgent(tools=[], model=model, verbosity_level=0)
"""


@pytest.mark.timeout(5 * DEADLINE + 30)  # the import takes long on a busy machine
@pytest.mark.parametrize("command", ["run", "check"])
def test_the_commands_take_an_agent(tmp_path, command):
    with ModelServer(default=DONE) as server:
        (tmp_path / "app.py").write_text(APP.replace("URL", server.url))
        done = subprocess.run(
            [Path(sys.executable).with_name("stoppable"), command, "app:agent", "Hello."],
            cwd=tmp_path,
            env=os.environ | {"PYTHONWARNINGS": "ignore"},
            capture_output=True,
            text=True,
            timeout=5 * DEADLINE,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    if command == "run":
        assert "Done." in done.stdout
