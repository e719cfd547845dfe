"""Crews, agents and flows of CrewAI are served as they are, and conversations go on after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from crewai.flow.flow import Flow, start
from pydantic import BaseModel
from tests.adapters.scenarios.history import is_valid, texts_of
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.crewai import as_agent
from stoppable.adapters.turn import NO_EFFECT
from stoppable.server import create_app
from stoppable.testing import ModelServer, Pause, Reply

from .world import DEADLINE, DONE, PATIENT, Booking, asking, booker, crew_of, model


@contextlib.asynccontextmanager
async def served(agent):
    """Serve an agent in this process."""
    async with stoppable.Supervisor() as supervisor:
        transport = httpx.ASGITransport(create_app(supervisor, {"chat": agent}))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield http, supervisor


async def begin(http, **given):
    patient = {"grace": DEADLINE, "cancel": DEADLINE}
    answer = await http.post("/runs", json={"agent": "chat", "input": given, "key": "ann", "policy": patient})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def ended(http, supervisor, run_id):
    await until(lambda: all(run.id != run_id for run in supervisor.runs), DEADLINE)
    record = (await http.get(f"/runs/{run_id}")).json()
    return record["status"], record["outcome"]


async def test_a_served_crew_has_its_placeholders_as_parameters():
    with ModelServer(default=Reply("Rome is nice.")) as server:
        crew = crew_of(booker(model(server), goal="Book for {name}."), description="A trip to {city}.")
        async with served(crew) as (http, supervisor):
            (agent,) = (await http.get("/agents")).json()["agents"]
            assert [each["name"] for each in agent["parameters"]] == ["city", "name"]
            run_id = await begin(http, city="Rome", name="Ann")
            status, outcome = await ended(http, supervisor, run_id)
            assert (status, outcome["result"]) == ("completed", "Rome is nice.")
            run_id = await begin(http, name="Ann")
            status, outcome = await ended(http, supervisor, run_id)
            assert (status, "city" in str(outcome["error"])) == ("failed", True)
        said = server.requests[0].messages
        assert ("Book for Ann." in str(said), "A trip to Rome." in str(said)) == (True, True)


async def test_two_runs_of_a_crew_do_not_meet():
    booking = Booking("Rome", "Oslo")
    with ModelServer(asking("Rome"), asking("Oslo"), default=DONE) as server:
        agent = as_agent(crew_of(booker(model(server), booking), description="A trip to {city}."))
        async with stoppable.Supervisor() as supervisor:
            first = await supervisor.start(agent, city="Rome", policy=PATIENT)
            await until(lambda: booking.begun == ["Rome"], DEADLINE)
            second = await supervisor.start(agent, city="Oslo", policy=PATIENT)
            await until(lambda: len(booking.begun) == 2, DEADLINE)
            await first.stop()
            booking.release()
            assert (await first.outcome()).status is stoppable.Status.STOPPED
            assert await second.result() == "Done."


class Sentence(BaseModel):
    text: str


async def test_the_result_of_a_crew_is_plain_json():
    with ModelServer(default=Reply('{"text": "Rome."}')) as server:
        crew = crew_of(booker(model(server)), stream=True)
        crew.tasks[0].output_json = Sentence
        assert await asyncio.to_thread(as_agent(crew)) == {"text": "Rome."}
        crew.tasks[0].output_json, crew.tasks[0].output_pydantic = None, Sentence
        assert await asyncio.to_thread(as_agent(crew)) == {"text": "Rome."}


async def test_a_served_agent_has_a_partial_is_stopped_by_its_key_and_talks_on():
    pause = Pause()
    with ModelServer(Reply("one two three", pause=pause), default=DONE) as server:
        async with served(booker(model(server, stream=True))) as (http, supervisor):
            (agent,) = (await http.get("/agents")).json()["agents"]
            assert [each["name"] for each in agent["parameters"]] == ["message", "session_id"]
            run_id = await begin(http, message="Count.", session_id="1")
            pause.release(2)
            said = lambda: [str(run.partial) for run in supervisor.runs if run.id == run_id]  # noqa: E731
            await until(lambda: any("two" in text for text in said()), DEADLINE)
            await supervisor.stop(key="ann", mode="immediate", wait=DEADLINE)
            status, outcome = await ended(http, supervisor, run_id)
            assert (status, outcome["partial"]) == ("stopped", "one two")
            status, outcome = await ended(http, supervisor, await begin(http, message="Go on.", session_id="1"))
            assert (status, outcome["result"]) == ("completed", "Done.")
            await ended(http, supervisor, await begin(http, message="And?", session_id="1"))
        messages = server.requests[-1].messages
        assert texts_of(messages, "assistant") == ["one two", "Done."]
        assert ["Count." in each for each in texts_of(messages, "user")] == [True, False, False]


async def test_the_calls_of_a_stopped_turn_are_answered_in_the_next_one():
    booking = Booking("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = as_agent(booker(model(server), booking))
        async with stoppable.Supervisor() as supervisor:
            handle = await supervisor.start(agent, "A trip.", session_id="1", policy=PATIENT)
            await until(lambda: booking.begun, DEADLINE)
            await handle.stop()
            booking.release()
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
            again = await supervisor.start(agent, "And?", session_id="1")
            assert await again.result() == "Done."
        assert is_valid(server.requests[-1].messages)
        assert texts_of(server.requests[-1].messages, "tool") == ["booked Rome"]


async def test_a_call_that_never_began_is_answered_in_the_next_turn():
    pause = Pause()
    with ModelServer(asking("Rome", pause=pause), default=DONE) as server:
        agent = as_agent(booker(model(server), Booking()))
        async with stoppable.Supervisor() as supervisor:
            handle = await supervisor.start(agent, "A trip.", session_id="1", policy=PATIENT)
            await until(lambda: server.requests, DEADLINE)
            await handle.stop()
            pause.end()
            await handle.outcome()
            assert await (await supervisor.start(agent, "And?", session_id="1")).result() == "Done."
        assert is_valid(server.requests[-1].messages)
        assert texts_of(server.requests[-1].messages, "tool") == [NO_EFFECT]


async def test_the_same_session_id_of_two_owners_is_two_conversations():
    with ModelServer(default=DONE) as server:
        agent = as_agent(booker(model(server)))
        async with stoppable.Supervisor() as supervisor:
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner, policy=PATIENT)
                assert await handle.result() == "Done."
            assert await (await supervisor.start(agent, "I am eve.")).result() == "Done."
        said = [" ".join(texts_of(request.messages, "user")) for request in server.requests]
        assert [(each.count("ann"), each.count("bob")) for each in said] == [(1, 0), (0, 1), (2, 0), (0, 0)]


async def test_a_message_waits_for_the_turn_before_it_and_can_be_stopped_meanwhile():
    booking = Booking("Rome")
    with ModelServer(asking("Rome"), default=DONE) as server:
        agent = as_agent(booker(model(server), booking))
        async with stoppable.Supervisor() as supervisor:
            first = await supervisor.start(agent, "A trip.", session_id="1", policy=PATIENT)
            await until(lambda: booking.begun, DEADLINE)
            second = await supervisor.start(agent, "And?", session_id="1", policy=PATIENT)
            third = await supervisor.start(agent, "Well?", session_id="1", policy=PATIENT)
            await second.stop()
            assert (await second.outcome()).status is stoppable.Status.STOPPED
            assert len(server.requests) == 1
            booking.release()
            assert [await first.result(), await third.result()] == ["Done.", "Done."]
        said = " ".join(texts_of(server.requests[-1].messages, "user"))
        assert ("A trip." in said, "And?" in said, "Well?" in said) == (True, False, True)


class Greeting(Flow):
    @start()
    def greet(self):
        return {"hello": self.state["name"]}


async def test_a_flow_is_served():
    async with stoppable.Supervisor() as supervisor:
        agent = as_agent(Greeting(), "greet")
        assert agent.__name__ == "greet"
        handles = [await supervisor.start(agent, {"name": name}) for name in ("Ann", "Bob")]
        assert [await handle.result() for handle in handles] == [{"hello": "Ann"}, {"hello": "Bob"}]
        streamed = Greeting()
        streamed.stream = True
        assert await (await supervisor.start(as_agent(streamed), {"name": "Eve"})).result() == {"hello": "Eve"}


def test_other_objects_are_refused():
    with pytest.raises(TypeError, match="Booking is not an agent: pass a Crew, an Agent or a Flow"):
        as_agent(Booking())
    kind = type("Mine", (), {"__module__": "my.crewai.crew", "__call__": lambda self: None})
    assert adapt_object(kind()) is None


APP = """
from crewai import LLM, Agent, Crew, Task

llm = LLM(model="openai/small", base_url="URL", api_key="none")
agent = Agent(role="booker", goal="Book trips.", backstory="Knows trains.", llm=llm)
crew = Crew(agents=[agent], tasks=[Task(description="A trip to {city}.", expected_output="A word.", agent=agent)])
"""


@pytest.mark.timeout(5 * DEADLINE + 30)  # the import takes long on a busy machine
@pytest.mark.parametrize("target", ["app:crew", "app:agent"])
@pytest.mark.parametrize("command", ["run", "check"])
def test_the_commands_take_it(tmp_path, command, target):
    with ModelServer(default=DONE) as server:
        (tmp_path / "app.py").write_text(APP.replace("URL", server.url))
        done = subprocess.run(
            [Path(sys.executable).with_name("stoppable"), command, target, "Rome"],
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
    assert "Rome" in str(server.requests[0].messages)
