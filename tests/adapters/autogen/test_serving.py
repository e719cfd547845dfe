"""An agent or a team of AutoGen is served as it is, and its conversations go on after a stop."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.replay import ReplayChatCompletionClient
from bench.frameworks_unmodified.with_autogen_agentchat import INFO
from pydantic import BaseModel
from tests.adapters.scenarios.history import answers_in, texts_of
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.autogen import as_agent
from stoppable.server import create_app
from stoppable.testing import ModelServer, Pause, Reply

from ... import served as serving
from .world import DEADLINE, Booking, World, asking

pytestmark = pytest.mark.filterwarnings("ignore")  # of AutoGen


async def start(http, message, **more):
    answer = await http.post("/runs", json={"agent": "chat", "input": {"message": message, "session_id": "1"}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


@pytest.mark.parametrize("in_team", [False, True], ids=["agent", "team"])
async def test_what_is_served_has_a_partial_is_stopped_by_its_key_and_talks_on(in_team):
    pause = Pause()
    async with World() as world:
        writer = world.agent("writer", Reply("one two three", pause=pause), model_client_stream=True)
        value = RoundRobinGroupChat([writer], max_turns=1) if in_team else writer
        async with stoppable.Supervisor() as supervisor:
            transport = httpx.ASGITransport(create_app(supervisor, {"chat": value}))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
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
                assert (record["status"], record["outcome"]["result"]) == ("completed", "Fine.")
                assert texts_of(world.messages("writer"), "assistant") == ["one two"]
                assert texts_of(world.messages("writer"), "user") == ["Count.", "Go on."]
        if in_team:  # FastAPI keeps the routes, and with -X dev pydantic crashes if its time zones live to the end
            await value.reset()


async def test_the_same_session_id_of_two_owners_is_two_conversations_and_none_is_a_new_one():
    async with World() as world:
        agent = as_agent(world.agent("writer"))
        async with stoppable.Supervisor() as supervisor:
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
                assert await handle.result() == "Fine."
        await agent("I am new.")
        said = [texts_of(request.messages, "user") for request in world.servers["writer"].requests]
    assert said == [["I am ann."], ["I am bob."], ["I am ann.", "I am ann."], ["I am new."]]


async def test_a_turn_that_waits_for_another_is_stopped_at_once():
    booking = Booking()
    async with World() as world, asyncio.timeout(DEADLINE):
        agent = as_agent(world.agent("booker", asking("book", city="Rome"), tools=[booking.book]))
        first = await stoppable.spawn(agent, "A trip.", "1")
        await booking.began.wait()
        second = await stoppable.spawn(agent, "Another.", "2")
        await asyncio.sleep(0)
        await second.stop()
        assert (await second.outcome()).status == "stopped"
        assert first.run.outcome is None
        booking.release.set()
        assert await first.result() == "Fine."
        assert await (await stoppable.spawn(agent, "Third.", "2")).result() == "Fine."
        assert texts_of(world.messages("booker"), "user") == ["Third."]


async def test_a_function_makes_an_agent_for_each_conversation_and_none_waits_for_another():
    bookings = [Booking(), Booking()]
    async with World() as world, asyncio.timeout(DEADLINE):
        # made here, because a server that is started in a run would belong to it
        agents = [
            *(
                world.agent(f"booker{number}", asking("book", city="Rome"), tools=[booking.book])
                for number, booking in enumerate(bookings, 1)
            ),
            world.agent("third"),
        ]

        def make():
            return agents.pop(0)

        agent = as_agent(make, "booker")
        handles = []
        for session_id, booking in zip(("1", "2"), bookings, strict=True):
            handles.append(await stoppable.spawn(agent, "A trip.", session_id))
            await booking.began.wait()
        await handles[0].stop("immediate")
        bookings[1].release.set()
        assert [(await handle.outcome()).status for handle in handles] == ["stopped", "completed"]
        await (await stoppable.spawn(agent, "And now?", "2")).result()
        assert answers_in(world.messages("booker2")) == {"book": "booked Rome"}
        assert texts_of(world.messages("booker2"), "user") == ["A trip.", "And now?"]
        await agent("No session.")
        assert texts_of(world.messages("third"), "user") == ["No session."]


class Trip(BaseModel):
    city: str


async def test_a_structured_answer_is_plain_json():
    client = ReplayChatCompletionClient(['{"city": "Rome"}'], model_info={**INFO, "structured_output": True})
    agent = AssistantAgent("booker", client, output_content_type=Trip)
    assert await as_agent(agent)("A trip.") == {"city": "Rome"}


async def test_it_is_named_after_the_agent_or_the_team():
    async with World() as world:
        agent = world.agent("writer")
        assert adapt_object(agent).__name__ == "writer"
        assert adapt_object(RoundRobinGroupChat([agent], name="desk")).__name__ == "desk"
        assert adapt_object(agent, "served").__name__ == "served"


MODULE = """
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

info = dict.fromkeys(("vision", "json_output", "structured_output"), False) | {"function_calling": True, "family": ""}
client = OpenAIChatCompletionClient(model="small", base_url="URL", api_key="none", model_info=info)
team = RoundRobinGroupChat([AssistantAgent("writer", client, model_client_stream=True)], max_turns=1)
"""


@pytest.fixture
def model(tmp_path):
    with ModelServer(default=Reply("Fine.")) as server:
        (tmp_path / "my_team.py").write_text(MODULE.replace("URL", server.url))
        yield server


COMMAND = [sys.executable, "-W", "ignore", "-m", "stoppable"]


@pytest.mark.parametrize(("name", "says"), [("run", "Fine."), ("check", "")])
def test_a_command_takes_a_team(name, says, model, tmp_path):
    command = [*COMMAND, name, "my_team:team", "Hello."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout


def test_the_command_serves_a_team(model, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "DEADLINE", 120)
    command = [*COMMAND, "serve", "my_team:team", "--port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    served = serving.Server(process)
    try:
        with httpx.Client(base_url=served.url(), timeout=120) as http:
            for count in (1, 2):
                start = {"agent": "team", "input": {"message": "Hello.", "session_id": "1"}}
                run_id = http.post("/runs", json=start).json()["id"]
                with http.stream("GET", f"/runs/{run_id}/events") as events:
                    assert "event: partial" in list(events.iter_lines())
                assert http.get(f"/runs/{run_id}").json()["outcome"]["result"] == "Fine."
                assert len(texts_of(model.requests[-1].messages, "user")) == count
    finally:
        process.kill()
        process.wait(DEADLINE)
        served.close()
