"""Threads after a stop: rolled back, repaired, left alone while an interrupt waits, and mended after a crash."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import stoppable
from stoppable import RunStopped, Status
from stoppable.adapters.langgraph import arepair, key_of, repair, stoppable_graph
from stoppable.adapters.turn import NOT_KNOWN

from . import cases
from .cases import CONFIG, World, turn
from .scripted import DEADLINE, Scripted, Streaming, calls

HERE = Path(__file__).parent


async def stop_held(graph, world, mode="immediate", text="hello"):
    handle = await stoppable.spawn(graph, turn(text), CONFIG)
    await world.hold.reached()
    await handle.stop(mode)
    async with asyncio.timeout(DEADLINE):
        outcome = await handle.outcome()
    assert outcome.status is Status.STOPPED
    return outcome


async def texts(graph):
    return [one.text for one in (await graph.aget_state(CONFIG)).values.get("messages", [])]


# Rolled back


@pytest.mark.parametrize("build", [cases.parallel_tools, cases.created_agent, cases.persistent_subgraph])
async def test_a_thread_is_rolled_back_to_where_the_turn_began(build):
    world = World()
    graph = stoppable_graph(build(world, InMemorySaver()), on_stop="rollback")
    script, world.model.script = world.model.script, []
    await graph.ainvoke(turn("first"), CONFIG)
    before = await texts(graph)
    world.model.script = script
    await stop_held(graph, world, text="second")
    assert await texts(graph) == before
    world.hold.release()
    await graph.ainvoke(turn("third"), CONFIG)
    assert await texts(graph) == [*before, "third", "done"]


async def test_a_new_thread_that_is_rolled_back_is_gone():
    world, saver = World(), InMemorySaver()
    graph = stoppable_graph(cases.async_tool(world, saver), on_stop="rollback")
    await stop_held(graph, world)
    assert list(saver.list(CONFIG)) == []
    assert await texts(graph) == []


async def test_a_blocking_call_is_rolled_back_too():
    world = World()
    graph = stoppable_graph(cases.sync_tool(world, InMemorySaver()), on_stop="rollback")
    script, world.model.script = world.model.script, []
    await stoppable.to_thread(graph.invoke, turn("first"), CONFIG)
    before = await texts(graph)
    world.model.script = script
    handle = await stoppable.spawn(lambda: graph.invoke(turn("second"), CONFIG))
    await world.hold.reached()
    await handle.stop()
    world.hold.release()
    assert (await handle.outcome()).status is Status.STOPPED
    assert await texts(graph) == before


async def test_a_thread_can_be_left_as_it_is():
    world = World()
    graph = stoppable_graph(cases.async_tool(world, InMemorySaver()), on_stop="leave")
    await stop_held(graph, world)
    assert (await graph.aget_state(CONFIG)).next == ("tools",)


def test_an_unknown_way_to_end_a_turn_is_refused():
    with pytest.raises(stoppable.InvalidArgument, match="use seal, rollback or leave"):
        stoppable_graph(cases.async_tool(World(), None), on_stop="undo")


# Repaired


def broken(*later):
    model = Scripted()
    graph = cases.agent_graph(model, [World().tool("book"), World().tool("other")], checkpointer=InMemorySaver())
    asked = AIMessage("", tool_calls=[{"name": name, "args": {}, "id": name} for name in ("book", "other")])
    answered = ToolMessage("other done", tool_call_id="other")
    graph.update_state(CONFIG, {"messages": [HumanMessage("hello"), asked, answered, *later]}, as_node="model")
    return graph


@pytest.mark.parametrize("later", [(), (HumanMessage("are you there?"),)], ids=["at its end", "in the middle"])
async def test_a_thread_that_was_broken_before_is_repaired_in_place_and_once(later):
    graph = broken(*later)
    with pytest.raises(Exception, match="400"):
        graph.invoke(turn("again"), CONFIG)
    graph = broken(*later)
    assert repair(graph, CONFIG)
    assert not repair(graph, CONFIG)
    assert not await arepair(graph, CONFIG)
    messages = graph.get_state(CONFIG).values["messages"]
    assert [one.type for one in messages] == ["human", "ai", "tool", "tool"] + ["human"] * len(later)
    assert messages[3].content == NOT_KNOWN
    assert graph.invoke(turn("again"), CONFIG)["messages"][-1].content == "done"


async def test_the_thread_of_a_persistent_subgraph_is_repaired_with_the_one_around_it():
    world = World()
    graph = cases.persistent_subgraph(world, InMemorySaver())
    cut = asyncio.create_task(graph.ainvoke(turn(), CONFIG))  # plain LangGraph
    await world.hold.reached()
    cut.cancel()
    await asyncio.wait([cut])
    world.hold.release()
    assert await arepair(graph, CONFIG)
    assert not await arepair(graph, CONFIG)
    assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].content == "done"


# Half-written


class RefusingSaver(InMemorySaver):
    """A store that takes a number of the writes of a seal, and fails then until it is back."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.left = taken
        self.is_back = False

    def put(self, config, checkpoint, metadata, new_versions):
        if metadata["source"] == "update" and not self.is_back:
            if self.left == 0:
                raise OSError("the store is not there")
            self.left -= 1
        return super().put(config, checkpoint, metadata, new_versions)


def two_tools(world, saver):
    world.model = Scripted(calls("book", "quick"))
    return create_agent(world.model, [world.tool("book", held=True), world.tool("quick")], checkpointer=saver)


async def stop_beside_a_result(graph, world):
    """Stop a turn in which one tool has finished, and another has not."""
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await world.hold.reached()
    async with asyncio.timeout(DEADLINE):
        while len(await texts(graph)) < 3:
            await asyncio.sleep(0.002)
    await handle.stop("immediate")
    assert (await handle.outcome()).status is Status.STOPPED
    world.hold.release()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
@pytest.mark.parametrize("taken", [0, 1])
async def test_the_next_turn_repairs_a_thread_whose_seal_is_half_written(taken, is_async):
    world = World()
    saver = RefusingSaver(taken)
    graph = stoppable_graph(two_tools(world, saver))
    await stop_beside_a_result(graph, world)
    assert saver.left == 0
    saver.is_back = True
    assert len(await texts(graph)) == 3  # the answer of one tool is missing
    answer = await (graph.ainvoke if is_async else functools.partial(stoppable.to_thread, graph.invoke))(turn(), CONFIG)
    kinds = [one.type for one in answer["messages"]]
    assert kinds == ["human", "ai", "tool", "tool", "human", "ai"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
async def test_a_half_written_thread_is_repaired_and_goes_on_where_it_was_stopped(is_async):
    world = World()
    saver = RefusingSaver(1)
    graph = stoppable_graph(two_tools(world, saver))
    await stop_beside_a_result(graph, world)
    saver.is_back = True
    assert (await arepair(graph, CONFIG)) if is_async else repair(graph, CONFIG)
    assert not await arepair(graph, CONFIG)
    assert (await graph.aget_state(CONFIG)).next == ("model",)
    answer = await graph.ainvoke(None, CONFIG)
    assert [one.type for one in answer["messages"]] == ["human", "ai", "tool", "tool", "ai"]


async def test_a_thread_that_says_nothing_of_what_was_cut_is_repaired_too():
    world = World()
    graph = stoppable_graph(two_tools(world, InMemorySaver()), on_stop="leave")
    await stop_beside_a_result(graph, world)
    await graph.aupdate_state(CONFIG, None, as_node=END)
    assert await arepair(graph, CONFIG)
    assert not await arepair(graph, CONFIG)
    assert (await graph.ainvoke(turn(), CONFIG))["messages"][-1].content == "done"


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
async def test_a_router_that_needs_what_the_cut_node_never_gave_does_not_keep_a_thread_from_being_sealed(is_async):
    class Planned(MessagesState):
        plan: str

    async def plan(state):
        return {"messages": [await world.model.ainvoke(state["messages"])], "plan": "answer"}

    def blocking_plan(state):
        return {"messages": [world.model.invoke(state["messages"])], "plan": "answer"}

    world = World()
    world.model = Streaming("one two three", hold=world.hold)
    builder = StateGraph(Planned).add_node("plan", RunnableLambda(blocking_plan, plan)).add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: {"answer": END}[state["plan"]])
    graph = stoppable_graph(builder.compile(checkpointer=InMemorySaver()))
    work = graph if is_async else functools.partial(_read_all, graph)
    handle = await stoppable.spawn(work, turn(), CONFIG)
    await world.hold.reached()
    await handle.stop("immediate")
    world.hold.release()
    assert (await handle.outcome()).status is Status.STOPPED
    assert [one.strip() for one in await texts(graph)][:2] in (["hello", "one two"], ["hello", "one two three"])
    world.model.hold = None
    assert (await graph.ainvoke(turn(), CONFIG))["messages"][-1].text.strip() == "done"


def _read_all(graph, *args):
    for _ in graph.stream(*args, stream_mode="messages"):
        pass


# Interrupts


def asking(world, saver):
    def ask(state):
        answer = interrupt("really?")
        return {"messages": [ToolMessage(answer, tool_call_id=state["messages"][-1].tool_calls[0]["id"])]}

    world.model = Scripted(calls("book"))
    graph = StateGraph(MessagesState)
    graph.add_node("model", cases.model_node(world.model))
    graph.add_node("ask", ask)
    graph.add_node("held", held(world))
    graph.add_edge(START, "model")
    graph.add_edge("model", "ask")
    graph.add_edge("model", "held")
    return graph.compile(checkpointer=saver)


def held(world):
    async def node(state):
        if world.hold.count == 0:
            await world.hold.wait_async()

    return node


async def test_nothing_is_written_over_a_pending_interrupt():
    world = World()
    graph = stoppable_graph(asking(world, InMemorySaver()))
    handle = await stoppable.spawn(graph, turn(), CONFIG)
    await world.hold.reached()
    while not (await graph.aget_state(CONFIG)).interrupts:
        await asyncio.sleep(0.002)
    await handle.stop("immediate")
    assert (await handle.outcome()).status is Status.STOPPED
    assert not await arepair(graph, CONFIG)
    assert [one.value for one in (await graph.aget_state(CONFIG)).interrupts] == ["really?"]
    answer = await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert answer["messages"][-1].content == "yes"


# Kept runs


async def test_a_run_is_found_and_stopped_by_its_thread():
    world = World()
    async with stoppable.Supervisor() as supervisor:
        graph = stoppable_graph(cases.async_tool(world, InMemorySaver()), supervisor, owner="ann")
        talking = asyncio.create_task(graph.ainvoke(turn(), CONFIG))
        await world.hold.reached()
        (found,) = await supervisor.find(key_of("1"))
        assert (found.name, found.owner) == ("LangGraph", "ann")
        (receipt,) = await supervisor.stop(key=key_of("1"), mode="immediate", wait=DEADLINE)
        assert receipt.status is Status.STOPPED
        with pytest.raises(RunStopped):
            await talking
        world.hold.release()
        assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].content == "done"


async def test_a_stop_that_comes_just_after_a_turn_does_not_stop_the_next_message_unless_it_is_asked_to():
    async with stoppable.Supervisor() as supervisor:
        graph = stoppable_graph(
            cases.agent_graph(Scripted(), [World().tool("book")], checkpointer=InMemorySaver()), supervisor
        )
        await graph.ainvoke(turn(), CONFIG)
        late = await supervisor.stop(key=key_of("1"), mode="immediate")
        assert (late, late.waits_until) == ((), None)
        assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].content == "done"
        await supervisor.stop(key=key_of("1"), mode="immediate", if_unknown="wait")
        with pytest.raises(RunStopped):
            await graph.ainvoke(turn("on its way"), CONFIG)


async def test_a_stream_is_a_run_that_goes_on_as_it_is_read_and_ends_with_its_reader():
    world = World()
    world.model = Scripted(calls("book"), calls("book"))
    tools = [world.tool("book")]
    graph = stoppable_graph(cases.agent_graph(world.model, tools, checkpointer=InMemorySaver()))
    stream = graph.astream(turn(), CONFIG, stream_mode="updates")
    assert list(await anext(stream)) == ["model"]
    await asyncio.sleep(0)
    assert world.effects == []
    await stream.aclose()
    assert (await graph.aget_state(CONFIG)).values["messages"][-1].type == "tool"  # sealed
    blocking = graph.stream(turn("again"), CONFIG, stream_mode="updates")
    assert list(next(blocking)) == ["model"]
    blocking.close()
    assert world.effects == []
    assert (await graph.ainvoke(turn("again"), CONFIG))["messages"][-1].content == "done"


async def test_the_reader_of_a_stream_is_told_that_the_run_was_stopped():
    world = World()
    async with stoppable.Supervisor() as supervisor:
        graph = stoppable_graph(cases.async_tool(world, InMemorySaver()), supervisor)

        async def read():
            return [item async for item in graph.astream(turn(), CONFIG)]

        reading = asyncio.create_task(read())
        await world.hold.reached()
        await supervisor.stop(key=key_of("1"), mode="immediate")
        with pytest.raises(RunStopped):
            await reading


async def test_an_error_of_a_node_reaches_the_caller_unchanged():
    def fail(state):
        raise ValueError("broken")

    graph = stoppable_graph(StateGraph(MessagesState).add_node("n", fail).add_edge(START, "n").compile())
    with pytest.raises(ValueError, match="broken"):
        await graph.ainvoke(turn())
    with pytest.raises(ValueError, match="broken"):
        [item async for item in graph.astream(turn())]
    with pytest.raises(ValueError, match="broken"):
        list(graph.stream(turn()))


# After a crash

CRASH = """
import asyncio, os, sys
import stoppable
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from stoppable.adapters.langgraph import graphs, stoppable_graph
from tests.adapters.langgraph import cases

async def die(thread):
    os.kill(os.getpid(), 9)

async def main():
    async with AsyncSqliteSaver.from_conn_string(sys.argv[1]) as saver:
        world = cases.World()
        graph = stoppable_graph(cases.parallel_tools(world, saver))
        handle = await stoppable.spawn(graph, cases.turn(), cases.CONFIG)
        await world.hold.reached()
        graphs.aseal = die  # between the stop and the seal
        await handle.stop("immediate")
        await handle.outcome()

asyncio.run(main())
"""


async def test_a_thread_whose_process_died_between_the_stop_and_the_seal_is_mended_at_the_next_turn(tmp_path):
    file = tmp_path / "threads.db"
    root = HERE.parents[2]
    died = subprocess.run(
        [sys.executable, "-c", CRASH, str(file)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=120,
        capture_output=True,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()
    with SqliteSaver.from_conn_string(str(file)) as saver:
        graph = stoppable_graph(cases.parallel_tools(World(), saver))
        graph.get_state(CONFIG)
        with_answer = cases.agent_graph(Scripted(), [World().tool("book"), World().tool("quick")], checkpointer=saver)
        answer = await stoppable.to_thread(stoppable_graph(with_answer).invoke, turn("again"), CONFIG)
        assert [one.type for one in answer["messages"]] == ["human", "ai", "tool", "tool", "human", "ai"]
