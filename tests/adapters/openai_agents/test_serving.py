"""An agent of the SDK is served as it is, and its conversations go on after a stop."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from agents import Agent, OpenAIChatCompletionsModel, SQLiteSession, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.openai_agents import as_agent
from stoppable.server import create_app, openai_api
from stoppable.testing import ModelServer, Pause, Reply

set_tracing_disabled(True)


@contextlib.asynccontextmanager
async def served(*script, **options):
    """Serve an agent of the SDK in this process."""
    with ModelServer(*script, default=Reply("Fine.")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
            agent = Agent(name="front", model=OpenAIChatCompletionsModel("gpt-5-mini", client), **options)
            async with stoppable.Supervisor() as supervisor:
                app = create_app(supervisor, {"chat": agent}, routers=[openai_api])
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                    yield http, server, supervisor


async def start(http, message, **more):
    answer = await http.post("/runs", json={"agent": "chat", "input": {"message": message, "session_id": "1"}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_served_agent_has_a_partial_is_stopped_by_its_key_and_talks_on():
    pause = Pause()
    async with served(Reply("one two three", pause=pause)) as (http, server, supervisor):
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


async def test_over_the_openai_api_the_turn_after_a_cancelled_one_knows_what_was_said():
    pause = Pause()
    async with served(Reply("one two three", pause=pause)) as (http, server, supervisor):

        async def respond(message, **more):
            return (await http.post("/v1/responses", json={"model": "chat", "input": message, **more})).json()

        first = await respond("Count.", background=True)
        pause.release(2)
        await until(lambda: any("two" in str(run.partial) for run in supervisor.runs))
        cancelled = (await http.post(f"/v1/responses/{first['id']}/cancel")).json()
        assert (cancelled["status"], cancelled["output"][0]["content"][0]["text"]) == ("cancelled", "one two")
        second = await respond("Go on.", previous_response_id=first["id"])
        assert second["status"] == "completed"
        assert second["output"][0]["content"][0]["text"] == "Fine.", "once: its text is its result too"
        assert texts_of(server.requests[-1].messages, "user") == ["Count.", "Go on."]
        assert texts_of(server.requests[-1].messages, "assistant") == ["one two"]


class Price(BaseModel):
    euros: int


async def test_an_output_with_a_type_is_plain_json():
    async with served(Reply('{"euros": 3}'), output_type=Price) as (http, _, supervisor):
        run_id = await start(http, "How much?")
        await until(lambda: all(run.id != run_id for run in supervisor.runs))
        assert (await http.get(f"/runs/{run_id}")).json()["outcome"]["result"] == {"euros": 3}


async def test_the_same_session_id_of_two_owners_is_two_conversations():
    with ModelServer(default=Reply("Fine.")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client, stoppable.Supervisor() as supervisor:
            agent = as_agent(Agent(name="front", model=OpenAIChatCompletionsModel("gpt-5-mini", client)))
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
                assert await handle.result() == "Fine."
        said = [texts_of(request.messages, "user") for request in server.requests]
        assert said == [["I am ann."], ["I am bob."], ["I am ann.", "I am ann."]]


async def test_sessions_may_be_the_users_own(tmp_path):
    with ModelServer(default=Reply("Fine.")) as server:
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client:
            agent = as_agent(
                Agent(name="front", model=OpenAIChatCompletionsModel("gpt-5-mini", client)),
                session=lambda session_id: SQLiteSession(session_id, tmp_path / "chats.db"),
            )
            assert (agent.__name__, await agent("Hello.", "1")) == ("front", "Fine.")
            items = await SQLiteSession("1", tmp_path / "chats.db").get_items()
            assert len(items) == 2


@pytest.mark.parametrize("module", ["agents", "my.agents"])
def test_an_object_of_a_module_of_the_user_that_is_called_agents_is_left_alone(module):
    kind = type("Mine", (), {"__module__": module, "__call__": lambda self: None})
    assert adapt_object(kind()) is None
