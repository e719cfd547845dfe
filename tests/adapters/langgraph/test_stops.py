"""A graph stops wherever it is, nothing has an effect afterwards that the receipt does not list, and it works on."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import stoppable
from stoppable import Fate, Status
from stoppable.adapters.langgraph import stoppable_graph
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT

from ...waiting import until
from .cases import CASES, CONFIG, World, turn
from .scripted import DEADLINE

SAVERS = ["memory", "sqlite"]
DURABILITIES = ["sync", "async", "exit"]


@contextlib.asynccontextmanager
async def saver_of(kind, path, *, is_async):
    if kind == "memory":
        yield InMemorySaver()
    elif is_async:
        async with AsyncSqliteSaver.from_conn_string(str(path / "threads.db")) as saver:
            yield saver
    else:
        with SqliteSaver.from_conn_string(str(path / "threads.db")) as saver:
            yield saver


class Stopped:
    """A graph that was stopped while it was held."""

    def __init__(self, case, world, graph, receipt, outcome):
        self.case, self.world, self.graph, self.receipt, self.outcome = case, world, graph, receipt, outcome

    def listed(self):
        return {f"{node.kind}:{node.name}" for node in self.receipt.entries}


async def stop(case, mode, saver, *, is_async=True, **options):
    """Start a graph as an agent, stop it while it is held, and wait for its end."""
    world = World()
    graph = stoppable_graph(case.build(world, saver), **options)

    def blocking():
        for _ in graph.stream(turn(), CONFIG, stream_mode="messages"):
            pass

    handle = await stoppable.spawn(graph, turn(), CONFIG) if is_async else await stoppable.spawn(blocking)
    await world.hold.reached()
    if "done" in case.answers:
        await until(lambda: "quick" in world.effects, DEADLINE)
        for _ in range(100):  # its result is on its way
            await asyncio.sleep(0)
    await handle.stop(mode, reason="enough")
    before = list(world.effects)
    if mode == "graceful" or case.in_thread or not is_async:  # else nothing releases it but the stop
        world.hold.release()
    async with asyncio.timeout(DEADLINE):
        outcome = await handle.outcome()
        receipt = await handle.receipt()
    after = world.effects[len(before) :]
    assert outcome.status is Status.STOPPED, outcome
    assert outcome.error is None, outcome.error
    stopped = Stopped(case, world, graph, receipt, outcome)
    assert {f"tool:{name}" for name in after} <= stopped.listed()
    assert case.in_flight in stopped.listed()
    # LangGraph's own clean-up of a blocking call submits a call that waits for its stream.
    assert [name for name in receipt.entered_after if is_async or name != "thread"] == []
    world.hold.release()
    return stopped


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kind", SAVERS)
async def test_the_next_turn_works_after_a_stop_anywhere(tmp_path, kind, case, mode):
    async with saver_of(kind, tmp_path, is_async=True) as saver:
        stopped = await stop(case, mode, saver)
        answer = await stopped.graph.ainvoke(turn("again"), CONFIG)
        assert answer["messages"][-1].type == ("human" if case.build.__name__ == "functional" else "ai")


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
@pytest.mark.parametrize("case", [case for case in CASES if case.is_blocking], ids=str)
@pytest.mark.parametrize("kind", SAVERS)
async def test_the_same_holds_for_blocking_calls(tmp_path, kind, case, mode):
    async with saver_of(kind, tmp_path, is_async=False) as saver:
        stopped = await stop(case, mode, saver, is_async=False)
        answer = await stoppable.to_thread(stopped.graph.invoke, turn("again"), CONFIG)
        assert answer["messages"][-1].content


@pytest.mark.parametrize("case", [case for case in CASES if case.answers], ids=str)
async def test_each_tool_call_has_an_answer_that_says_what_is_known(case):
    stopped = await stop(case, "immediate", InMemorySaver())
    state = await stopped.graph.aget_state(CONFIG)
    said = [one for one in state.values["messages"] if isinstance(one, ToolMessage)]
    texts = {MAY_HAVE_TAKEN_EFFECT: "open", NO_EFFECT: "never"}
    assert sorted(texts.get(one.content, "done") for one in said) == sorted(case.answers)
    assert [one.status for one in said if one.content in texts] == ["error"] * case.answers.count("open")


async def test_a_call_that_the_stop_came_before_is_said_to_have_had_no_effect():
    mid_llm = CASES[0]
    stopped = await stop(mid_llm, "graceful", InMemorySaver())
    answer, told = (await stopped.graph.aget_state(CONFIG)).values["messages"][-2:]
    assert answer.tool_calls  # it was paid for, and is kept
    assert told.content == NO_EFFECT
    assert stopped.world.effects == []


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_what_a_model_had_streamed_is_kept(mode, is_async):
    mid_stream = CASES[1]
    stopped = await stop(mid_stream, mode, InMemorySaver(), is_async=is_async)
    last = (await stopped.graph.aget_state(CONFIG)).values["messages"][-1]
    assert last.type == "ai"
    assert last.text.startswith("one two ")
    assert "five" not in last.text
    if is_async:
        assert stopped.outcome.partial.startswith("one two ")
        fate = next(node.fate for node in stopped.receipt.entries if node.kind == "llm")
        assert fate is (Fate.CLOSED if mode == "graceful" else Fate.CANCELLED)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_thread_is_sealed_in_every_durability_mode(tmp_path, mode, durability):
    case = next(case for case in CASES if str(case) == "parallel_tools")
    async with saver_of("sqlite", tmp_path, is_async=True) as saver:
        world = World()
        graph = stoppable_graph(case.build(world, saver))
        handle = await stoppable.spawn(_calling(graph, durability))
        await world.hold.reached()
        await handle.stop(mode)
        if mode == "graceful":
            world.hold.release()
        assert (await handle.outcome()).status is Status.STOPPED
        messages = (await graph.aget_state(CONFIG)).values["messages"]
        assert [one.type for one in messages] == ["human", "ai", "tool", "tool"]
        answer = await graph.ainvoke(turn("again"), CONFIG)
        assert answer["messages"][-1].content == "done"


def _calling(graph, durability):
    async def agent():
        return await graph.ainvoke(turn(), CONFIG, durability=durability)

    return agent


async def test_subgraphs_are_child_runs_and_their_tools_are_listed():
    case = next(case for case in CASES if str(case) == "subgraph")
    stopped = await stop(case, "graceful", InMemorySaver())
    runs = [node for node in stopped.receipt.entries if node.kind == "run"]
    assert len(runs) == 2
    assert {node.fate for node in runs} == {Status.STOPPED}
    assert {"node:inner", "node:tools", "tool:book"} <= stopped.listed()
