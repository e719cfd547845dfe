"""An agent or workflow of LlamaIndex is served as it is, and its conversations go on after a stop."""

from __future__ import annotations

import httpx
import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until
from workflows import Workflow, step
from workflows.events import StartEvent, StopEvent

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.llama_index import as_agent
from stoppable.server import create_app
from stoppable.testing import ModelServer, Pause, Reply

pytestmark = pytest.mark.filterwarnings("ignore")  # of LlamaIndex


def chat(server):
    options = {"is_chat_model": True, "is_function_calling_model": True}
    return FunctionAgent(
        name="front", llm=OpenAILike(model="small", api_base=server.url, api_key="none", max_retries=0, **options)
    )


async def start(http, message, **more):
    answer = await http.post("/runs", json={"agent": "chat", "input": {"message": message, "session_id": "1"}, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


async def test_a_served_agent_has_a_partial_is_stopped_by_its_key_and_talks_on():
    pause = Pause()
    with ModelServer(Reply("one two three", pause=pause), default=Reply("Fine.")) as server:
        async with stoppable.Supervisor() as supervisor:
            transport = httpx.ASGITransport(create_app(supervisor, {"chat": chat(server)}))
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


async def test_the_same_session_id_of_two_owners_is_two_conversations():
    with ModelServer(default=Reply("Fine.")) as server:
        agent = as_agent(chat(server))
        async with stoppable.Supervisor() as supervisor:
            for owner in ("ann", "bob", "ann"):
                handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
                assert await handle.result() == "Fine."
        said = [texts_of(request.messages, "user") for request in server.requests]
        assert said == [["I am ann."], ["I am bob."], ["I am ann.", "I am ann."]]


async def test_memories_may_be_the_users_own():
    memory = ChatMemoryBuffer.from_defaults()
    with ModelServer(default=Reply("Fine.")) as server:
        agent = as_agent(chat(server), memory=lambda session_id: memory)
        assert (agent.__name__, await agent("Hello.", "1")) == ("front", "Fine.")
    assert len(memory.get_all()) == 2


class Greeting(Workflow):
    @step
    async def greet(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result={"text": f"Hello, {ev.name}."})


async def test_a_workflow_takes_the_arguments_of_its_start_event():
    agent = adapt_object(Greeting(), "greeting")
    assert (agent.__name__, await agent(name="Ann")) == ("greeting", {"text": "Hello, Ann."})


def test_an_object_of_a_module_of_the_user_that_is_called_workflows_is_left_alone():
    kind = type("Mine", (), {"__module__": "workflows", "__call__": lambda self: None})
    assert adapt_object(kind()) is None
