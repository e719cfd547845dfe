"""A LangGraph graph behind an A2A server: a cancel stops it wherever it is, and the conversation works on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from typing import Any

os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")

import httpx
import pytest
from a2a.auth.user import User
from a2a.client import ClientConfig, ClientFactory
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import Task, TaskState, TaskStatus
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from starlette.applications import Starlette

import stoppable
from stoppable.adapters.a2a import StoppableRequestHandler
from stoppable.adapters.a2a_langgraph import LangGraphAgentExecutor, thread_of
from stoppable.adapters.turn import NOT_KNOWN

from ...waiting import until
from ..a2a.serving import SECONDS, Served, app_of, card_for, listening, message, state_of
from . import cases, test_internal
from .cases import World
from .scripted import Scripted, Streaming, calls

WORDS = [str(number) for number in range(50)]

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::DeprecationWarning:{name}") for name in ("a2a", "google", "starlette")
]


@contextlib.asynccontextmanager
async def served(build, **options):
    """Serve a graph; yields the server, its world, and what its callback was told."""
    world, told, app = World(), [], Starlette()
    async with (
        stoppable.Supervisor() as supervisor,
        listening(app) as url,
        httpx.AsyncClient(timeout=SECONDS) as http,
    ):
        card = card_for(url + "/")
        executor = LangGraphAgentExecutor(
            build(world, InMemorySaver()), supervisor, on_stopped=lambda *args: told.append(args), **options
        )
        handler = StoppableRequestHandler(executor, InMemoryTaskStore(), card)
        app.router.routes.extend(app_of(handler, card).routes)
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        try:
            yield Served(url, handler, client, http), world, told
        finally:
            world.hold.release()
            await handler.close()


def artifacts(task):
    return {one.name: one for one in task.artifacts}


async def test_a_task_is_answered_with_the_text_of_the_graph():
    async with served(cases.mid_stream) as (server, world, told):
        world.hold.release()
        stream = server.stream()
        assert (await stream.ended())[-1] == "COMPLETED"
        task = await server.get(stream.task_id)
        assert "".join(part.text for part in artifacts(task)["answer"].parts) == "one two three four five "
        await until(lambda: server.executor.metrics.messages, SECONDS)
        assert (server.executor.metrics.stopped, told) == (0, [])
        with pytest.raises(TaskNotCancelableError):
            await server.cancel(stream.task_id)


async def test_what_a_guard_and_a_model_inside_a_tool_say_is_not_in_the_answer():
    async with served(test_internal.answering) as (server, _, _):
        stream = server.stream()
        assert (await stream.ended())[-1] == "COMPLETED"
        answer = artifacts(await server.get(stream.task_id))["answer"]
        assert "".join(part.text for part in answer.parts) == "one two three "


async def test_a_cancel_between_two_chunks_keeps_the_text_and_the_state():
    async with served(cases.mid_stream) as (server, world, told):
        stream = server.stream()
        task_id = await stream.started()
        await world.hold.reached()
        canceled = await server.cancel(task_id, stoppable={"mode": "immediate", "reason": "wrong topic"})
        assert state_of(canceled) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        found = artifacts(await server.get(task_id))
        state = MessageToDict(found["partial"].parts[0].data)
        assert [one["type"] for one in state["messages"]] == ["human", "ai"]
        assert state["messages"][1]["content"] == "one two "
        ((told_id, run),) = await until(lambda: told, SECONDS)
        assert (told_id, run.status, run.reason.message) == (task_id, "stopped", "wrong topic")
        metrics = server.executor.metrics
        assert (metrics.messages, metrics.stopped, metrics.lost) == (1, 1, 0)
        assert 0 < metrics.longest_stop_seconds == metrics.stop_seconds
        # The conversation works on.
        world.hold.release()
        again = server.stream("again", context_id=canceled.context_id)
        assert (await again.ended())[-1] == "COMPLETED"


class AllAtOnce(Streaming):
    """Streams its answer faster than it can be published, and is stopped before it goes on."""

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        async for chunk in super()._astream(messages, **kwargs):
            yield chunk
        stoppable.current_run().root.stop("immediate")
        await asyncio.sleep(SECONDS)


async def test_text_that_was_not_published_yet_when_the_task_was_canceled_is_in_the_answer():
    def build(world, saver):
        return cases.agent_graph(AllAtOnce(" ".join(WORDS)), [world.tool("book")], checkpointer=saver)

    async with served(build) as (server, _, _):
        stream = server.stream()
        assert (await stream.ended())[-1] == "CANCELED"
        answer = artifacts(await server.get(stream.task_id))["answer"]
        assert "".join(part.text for part in answer.parts).split() == WORDS


async def test_a_node_in_flight_is_cut_when_the_grace_is_over_and_its_call_is_answered():
    async with served(cases.async_tool, grace=0.05) as (server, world, _):
        stream = server.stream()
        task_id = await stream.started()
        await world.hold.reached()
        canceled = await server.cancel(task_id)
        assert state_of(canceled) == "CANCELED"
        assert world.effects == []
        again = server.stream("again", context_id=canceled.context_id)
        assert (await again.ended())[-1] == "COMPLETED"


async def test_a_task_that_is_cancelled_before_it_starts_never_comes_to_its_graph():
    async with served(cases.mid_llm) as (server, world, told):
        await server.executor.supervisor.stop(key=server.executor.key("early"))
        early = Task(id="early", context_id="c", status=TaskStatus(state=TaskState.TASK_STATE_SUBMITTED))
        await server.handler.task_store.save(early, ServerCallContext())
        stream = server.stream(task_id="early", context_id="c")
        assert (await stream.ended())[-1] == "CANCELED"
        assert world.model.seen == []
        assert [one[0] for one in await until(lambda: told, SECONDS)] == ["early"]


async def test_one_cancel_leaves_other_tasks_alone():
    async with served(cases.async_tool) as (server, world, _):
        world.model.script = world.model.script * 2
        first, second = server.stream(), server.stream()
        first_id = await first.started()
        await second.started()
        await world.hold.reached(2)
        await server.cancel(first_id, stoppable={"mode": "immediate"})
        world.hold.release()
        assert (await first.ended())[-1] == "CANCELED"
        assert (await second.ended())[-1] == "COMPLETED"


async def test_a_task_that_does_not_exist_cannot_be_cancelled():
    async with served(cases.mid_llm) as (server, _, _):
        with pytest.raises(TaskNotFoundError):
            await server.cancel("nobody")


async def test_a_callback_that_fails_changes_nothing(caplog):
    async with served(cases.async_tool, grace=0.05) as (server, world, _):
        server.executor._on_stopped = lambda *_: 1 / 0
        stream = server.stream()
        task_id = await stream.started()
        await world.hold.reached()
        assert state_of(await server.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        await until(lambda: "on_stopped" in caplog.text, SECONDS)


def asking(world, saver):
    def ask(state):
        return {"messages": [AIMessage(f"You said {interrupt('really?')}.")]}

    return StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)


async def test_an_interrupt_asks_for_input_and_the_next_message_answers_it():
    async with served(asking) as (server, _, _):
        stream = server.stream()
        assert (await stream.ended())[-1] == "INPUT_REQUIRED"
        task = await server.get(stream.task_id)
        assert task.status.message.parts[0].text == "really?"
        answer = server.stream("yes", task_id=stream.task_id, context_id=task.context_id)
        assert (await answer.ended())[-1] == "COMPLETED"
        found = artifacts(await server.get(stream.task_id))
        assert found["answer"].parts[0].text == "You said yes."


class Named(User):
    def __init__(self, name):
        self.user_name, self.is_authenticated = name, True

    user_name = is_authenticated = None  # as the SDK declares them: properties


async def test_a_context_of_another_owner_is_another_thread():
    """Clients choose the ids of contexts: choosing that of another owner does not continue the conversation."""
    async with served(remembering) as (server, _, _):
        seen = []
        for owner in ("ann", "bob", None, "ann"):
            context = ServerCallContext() if owner is None else ServerCallContext(user=Named(owner))
            sent = message(f"I am {owner}", context_id="the-same", message_id=uuid.uuid4().hex)
            task = await server.handler.on_message_send(sent, context)
            seen.append("".join(part.text for part in artifacts(task)["answer"].parts))
        assert seen == ["I am ann", "I am bob", "I am None", "I am ann, I am ann"]
        threads = [thread_of("the-same", owner) for owner in ("ann", "bob", None)]
        states = [await server.executor.graph.aget_state({"configurable": {"thread_id": one}}) for one in threads]
        assert [len(state.values["messages"]) for state in states] == [4, 2, 2]
    assert thread_of("@ann/c") != thread_of("c", "ann")


def remembering(world, saver):
    def answer(state):
        return {"messages": [AIMessage(", ".join(one.text for one in state["messages"] if one.type == "human"))]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


def deleting(world, saver):
    """Ask before it deletes; anything else is answered at once."""

    async def answer(state):
        if state["messages"][-1].text != "delete everything":
            return {"messages": [AIMessage("hello")]}
        said = interrupt("really?")
        world.effects.append(f"begun: {said}")
        await world.hold.wait_async()
        world.effects.append("deleted")
        return {"messages": [AIMessage("deleted")]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)


async def asked(server):
    stream = server.stream("delete everything", message_id=uuid.uuid4().hex)
    assert (await stream.ended())[-1] == "INPUT_REQUIRED"
    return await server.get(stream.task_id)


async def pending(server, context_id):
    state = await server.executor.graph.aget_state({"configurable": {"thread_id": context_id}})
    return [one.value for task in state.tasks for one in task.interrupts]


async def say(server, text, **ids):
    stream = server.stream(text, message_id=uuid.uuid4().hex, **ids)
    return (await stream.ended())[-1], stream.task_id


async def test_a_canceled_question_is_not_answered_by_the_next_message():
    async with served(deleting) as (server, world, _):
        world.hold.release()
        task = await asked(server)
        canceled = await server.cancel(task.id, stoppable={"reason": "no!"})
        assert state_of(canceled) == "CANCELED"
        assert await pending(server, task.context_id) == []
        assert (await say(server, "what is the weather?", context_id=task.context_id))[0] == "COMPLETED"
        assert world.effects == []


async def test_a_question_is_answered_only_by_the_task_that_asked():
    """Another task in the conversation takes the question back, and its own question is not answered by the first."""
    async with served(deleting) as (server, world, _):
        world.hold.release()
        first = await asked(server)
        state, second = await say(server, "delete everything", context_id=first.context_id)
        assert state == "INPUT_REQUIRED"
        assert (await say(server, "yes", task_id=first.id, context_id=first.context_id))[0] == "COMPLETED"
        assert world.effects == []
        assert (await say(server, "yes", task_id=second, context_id=first.context_id))[0] == "COMPLETED"
        assert world.effects == []  # the message of the first task took it back
        third = await asked(server)
        assert (await say(server, "yes", task_id=third.id, context_id=third.context_id))[0] == "COMPLETED"
        assert world.effects == ["begun: yes", "deleted"]


async def test_a_stop_in_the_middle_of_an_answered_question_takes_it_back():
    async with served(deleting, grace=0.05) as (server, world, _):
        task = await asked(server)
        stream = server.stream("yes", task_id=task.id, context_id=task.context_id)
        await world.hold.reached()
        assert state_of(await server.cancel(task.id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        assert await pending(server, task.context_id) == []
        world.hold.release()
        assert (await say(server, "what is the weather?", context_id=task.context_id))[0] == "COMPLETED"
        assert world.effects == ["begun: yes"]


async def test_a_question_that_a_cancel_elsewhere_left_is_taken_back_by_the_next_message():
    """As after a cancel at another replica, whose process does not have the graph's thread at hand."""
    async with served(deleting) as (server, world, _):
        world.hold.release()
        task = await asked(server)
        server.executor.seal = lambda *_: asyncio.sleep(0)
        await server.cancel(task.id)
        assert await pending(server, task.context_id) == ["really?"]
        assert (await say(server, "what is the weather?", context_id=task.context_id))[0] == "COMPLETED"
        assert world.effects == []


@tool
async def delete() -> str:
    """Delete everything."""
    return f"deleted: {interrupt('really?')}"


@tool
async def look() -> str:
    """Look."""
    return "seen"


def with_tools(world, saver):
    world.model = Scripted(calls("delete", "look"), "sunny")
    return create_agent(world.model, [delete, look], checkpointer=saver)


async def test_the_tool_calls_of_a_canceled_question_are_answered():
    async with served(with_tools) as (server, _, _):
        task = await asked(server)
        await server.cancel(task.id)
        assert (await say(server, "what is the weather?", context_id=task.context_id))[0] == "COMPLETED"
        state = await server.executor.graph.aget_state({"configurable": {"thread_id": task.context_id}})
        answers = {one.name: one.text for one in state.values["messages"] if one.type == "tool"}
        assert answers == {"delete": NOT_KNOWN, "look": "seen"}


class Odd(MessagesState):
    extra: Any


def odd_state(world, saver):
    async def fill(state):
        return {"messages": [AIMessage("first")], "extra": {"bytes": b"\xff", "set": {1}, "nan": float("nan")}}

    async def wait(state):
        await world.hold.wait_async()

    graph = StateGraph(Odd).add_node("fill", fill).add_node("wait", wait)
    return graph.add_edge(START, "fill").add_edge("fill", "wait").compile(checkpointer=saver)


async def test_a_state_that_json_cannot_hold_is_published_all_the_same():
    async with served(odd_state, grace=0.05) as (server, world, _):
        stream = server.stream()
        await world.hold.reached()
        assert state_of(await server.cancel(stream.task_id)) == "CANCELED"
        state = MessageToDict(artifacts(await server.get(stream.task_id))["partial"].parts[0].data)
        assert state["extra"] == {"bytes": "/w==", "set": [1.0], "nan": "nan"}
        assert [one["type"] for one in state["messages"]] == ["human", "ai"]


class HangingSaver(InMemorySaver):
    """Does not answer reads while it hangs, as a database that is overloaded."""

    def __init__(self):
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def aget_tuple(self, config):
        async with asyncio.timeout(SECONDS):
            await self.answers.wait()
        return await super().aget_tuple(config)


async def test_a_kill_ends_a_task_whose_checkpointer_hangs_and_the_next_message_repairs_the_thread():
    saver = HangingSaver()
    policy = stoppable.Policy(grace=0, interrupt=0.05, cancel=0.2, kill=SECONDS, blind_grace=0)
    async with served(lambda world, _saver: cases.async_tool(world, saver), policy=policy) as (server, world, _):
        stream = server.stream()
        task_id = await stream.started()
        await world.hold.reached()
        saver.answers.clear()
        canceled = await server.cancel(task_id, stoppable={"mode": "immediate"})
        saver.answers.set()
        assert state_of(canceled) == "CANCELED"
        assert MessageToDict(canceled.metadata)["stoppable"]["rung"] == "kill"
        world.hold.release()
        again = server.stream("again", context_id=canceled.context_id)
        assert (await again.ended())[-1] == "COMPLETED"
