"""An agent, a graph or a swarm of Strands is served as it is, and its conversations go on after a stop."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from pydantic import BaseModel
from strands import tool
from strands.multiagent import GraphBuilder
from strands.session.file_session_manager import FileSessionManager
from tests.adapters.scenarios.history import texts_of
from tests.adapters.strands.conftest import DEADLINE, agent_of, asking
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.strands import as_agent
from stoppable.server import create_app
from stoppable.testing import ModelServer, Pause, Reply


async def start(http, message, **more):
    answer = await http.post("/runs", json={"agent": "chat", "input": {"message": message, "session_id": "1"}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_served_agent_has_a_partial_is_stopped_by_its_key_and_talks_on():
    pause = Pause()
    with ModelServer(Reply("one two three", pause=pause), default=Reply("Fine.")) as server:
        async with stoppable.Supervisor() as supervisor:
            transport = httpx.ASGITransport(create_app(supervisor, {"chat": agent_of(server)}))
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
                assert texts_of(server.requests[-1].messages, "assistant") == ["one two"]


def said(server):
    return [texts_of(request.messages, "user") for request in server.requests]


async def test_the_same_session_id_of_two_owners_is_two_conversations():
    with ModelServer(default=Reply("Fine.")) as server:
        agent = as_agent(agent_of(server))
        async with stoppable.Supervisor() as supervisor:
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
                assert await handle.result() == "Fine."
        assert said(server) == [["I am ann."], ["I am bob."], ["I am ann.", "I am ann."]]


async def test_a_message_without_a_session_is_a_conversation_of_its_own():
    with ModelServer(default=Reply("Fine.")) as server:
        agent = as_agent(agent_of(server))
        for _ in range(2):
            assert await agent("Hello.") == "Fine."
        assert said(server) == [["Hello."], ["Hello."]]


async def test_one_agent_has_one_turn_at_a_time():
    pause = Pause()
    with ModelServer(Reply("one", pause=pause), default=Reply("Fine.")) as server:
        agent = as_agent(agent_of(server))
        async with asyncio.timeout(DEADLINE):
            first = await stoppable.spawn(agent, "I am first.", "1")
            await server.wait_for_request_async()
            second = await stoppable.spawn(agent, "I am second.", "2")
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(server.requests) == 1
            await first.stop("immediate")
            assert (await first.outcome()).status is stoppable.Status.STOPPED
            assert await second.result() == "Fine."
        assert said(server)[-1] == ["I am second."]


async def test_agents_that_are_made_for_a_session_have_turns_at_once():
    pause = Pause()
    with ModelServer(Reply("one", pause=pause), default=Reply("Fine.")) as server:
        made = []

        def make(session_id):
            made.append(session_id)
            return agent_of(server)

        agent = as_agent(make, "desk")
        assert agent.__name__ == "desk"
        async with asyncio.timeout(DEADLINE):
            first = await stoppable.spawn(agent, "I am first.", "1")
            await server.wait_for_request_async()
            assert await agent("I am second.", "2") == "Fine."
            pause.end()
            assert await first.result() == "one"
            assert await agent("Again.", "1") == "Fine."
        assert made == ["1", "2"]
        assert said(server)[-1] == ["I am first.", "Again."]


def test_an_agent_whose_session_is_saved_is_refused_with_what_to_do(tmp_path):
    with ModelServer() as server:
        manager = FileSessionManager(session_id="ann", storage_dir=str(tmp_path))
        agent = agent_of(server, session_manager=manager, name="desk")
        with pytest.raises(ValueError, match=r"'desk' has a session manager.*a function that makes an agent"):
            as_agent(agent)


class Trip(BaseModel):
    city: str


async def test_a_structured_output_is_plain():
    with ModelServer(asking("Trip", city="Rome"), default=Reply("Fine.")) as server:
        agent = as_agent(agent_of(server, structured_output_model=Trip))
        assert await agent("Where to?") == {"city": "Rome"}


async def test_a_graph_is_an_agent_whose_result_is_the_text_of_each_node():
    with ModelServer(Reply("Rome."), Reply("Booked."), default=Reply("Fine.")) as server:
        builder = GraphBuilder().set_max_node_executions(10)
        builder.add_node(agent_of(server), "choose")
        builder.add_node(agent_of(server), "book")
        builder.add_edge("choose", "book")
        agent = adapt_object(builder.build(), "trips")
        assert agent.__name__ == "trips"
        assert await agent("A trip, please.") == {"choose": "Rome.", "book": "Booked."}
        assert await agent("Another.") == {"choose": "Fine.", "book": "Fine."}
        assert said(server)[2] == ["Another."]  # it does not see what was said before


def test_other_objects_of_strands_are_left_alone():
    @tool
    def book() -> str:
        """Book a trip."""
        return "booked"

    assert adapt_object(book) is None
