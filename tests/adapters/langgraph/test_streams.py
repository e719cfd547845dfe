"""The reader of a stream gets everything that the graph emitted before a stop, however slowly it reads."""

from __future__ import annotations

import asyncio
import threading

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

import stoppable
from stoppable.adapters.langgraph import key_of, stoppable_graph

from .cases import CONFIG, turn
from .scripted import DEADLINE, Held, Scripted, Streaming

PATIENT = stoppable.Policy(grace=DEADLINE, cancel=DEADLINE, kill=DEADLINE)  # nothing is given up on a busy machine
CHUNKS = 5
MODES = ["graceful", "immediate", "kill"]
TURNS = 50
"""How many turns of the loop a graph gets in which to run ahead of its reader."""


class Talk:
    """A graph whose first node emits chunks and is held, and whose second node must not begin after a stop."""

    def __init__(self, supervisor, *, before_it_is_held=lambda: None, **options):
        self.hold = Held()
        self.has_next_begun = False
        self.before_it_is_held = before_it_is_held
        self.options = options
        self.supervisor = supervisor

    def emit(self):
        writer = get_stream_writer()
        for number in range(CHUNKS):
            writer(number)
        self.before_it_is_held()

    def graph(self, first):
        def last(state):
            self.has_next_begun = True
            return {"messages": [AIMessage("never")]}

        builder = StateGraph(MessagesState).add_node("first", first).add_node("last", last)
        builder.add_edge(START, "first").add_edge("first", "last")
        return stoppable_graph(builder.compile(InMemorySaver()), self.supervisor, policy=PATIENT)

    def read(self):
        async def first(state):
            self.emit()
            await self.hold.wait_async()

        return self.graph(first).astream(turn(), CONFIG, **self.options)

    def read_blocking(self):
        def first(state):
            self.emit()
            self.hold.wait()

        return self.graph(first).stream(turn(), CONFIG, **self.options)


async def stop(supervisor, mode, *held):
    """Stop the run of the thread, and wait for its end: its reader does not read meanwhile."""
    [receipt] = await supervisor.stop(key=key_of("1"), mode=mode)
    for one in held:
        one.release()
    async with asyncio.timeout(DEADLINE):
        assert (await supervisor.handle(receipt.run_id).outcome()).status == "stopped"


async def rest(stream, items):
    with pytest.raises(stoppable.RunStopped):
        async with asyncio.timeout(DEADLINE):
            async for item in stream:
                items.append(item)
    return items


@pytest.mark.parametrize("mode", MODES)
async def test_a_slow_reader_gets_every_chunk_that_was_emitted_before_the_stop(mode):
    async with stoppable.Supervisor() as supervisor:
        talk = Talk(supervisor, stream_mode="custom")
        stream = talk.read()
        items = [await anext(stream)]
        await talk.hold.reached()
        await stop(supervisor, mode, *([talk.hold] if mode == "graceful" else []))
        assert await rest(stream, items) == list(range(CHUNKS))
        assert not talk.has_next_begun


@pytest.mark.parametrize("mode", MODES)
async def test_a_slow_reader_of_a_blocking_stream_gets_the_same(mode):
    async with stoppable.Supervisor() as supervisor:
        talk = Talk(supervisor, stream_mode="custom")
        items, has_first, goes_on = [], threading.Event(), threading.Event()

        def read():
            for item in talk.read_blocking():
                items.append(item)
                has_first.set()
                assert goes_on.wait(2 * DEADLINE)

        reading = asyncio.create_task(asyncio.to_thread(read))
        await talk.hold.reached()
        assert await asyncio.to_thread(has_first.wait, DEADLINE)
        await stop(supervisor, mode, talk.hold)
        goes_on.set()
        with pytest.raises(stoppable.RunStopped):
            await reading
        assert items == list(range(CHUNKS))
        assert not talk.has_next_begun


def stop_at_once():
    """Stop the current run, and keep its loop busy: the reader learns of the chunks and of the stop together."""
    stoppable.current_run().stop("immediate")
    threading.Event().wait(0.2)


async def test_a_reader_that_waits_gets_what_was_emitted_in_the_same_moment_as_the_stop():
    async with stoppable.Supervisor() as supervisor:
        talk = Talk(supervisor, before_it_is_held=stop_at_once, stream_mode="custom")
        assert await rest(talk.read(), []) == list(range(CHUNKS))


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ({"stream_mode": ["custom", "updates"]}, ("custom",)),
        ({"stream_mode": "custom", "subgraphs": True}, ((),)),
        ({"stream_mode": ["custom", "messages"], "subgraphs": True}, ((), "custom")),
    ],
    ids=str,
)
async def test_the_chunks_have_the_form_that_the_reader_asked_for(options, form):
    async with stoppable.Supervisor() as supervisor:
        talk = Talk(supervisor, **options)
        stream = talk.read()
        items = [await anext(stream)]
        await talk.hold.reached()
        await stop(supervisor, "immediate")
        assert await rest(stream, items) == [(*form, number) for number in range(CHUNKS)]


async def test_the_words_of_a_model_that_were_not_read_are_delivered():
    hold = Held()
    model = Streaming("one two three four", hold=hold)

    async def talk(state):
        return {"messages": [await model.ainvoke(state["messages"])]}

    async with stoppable.Supervisor() as supervisor:
        builder = StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk")
        graph = stoppable_graph(builder.compile(InMemorySaver()), supervisor, policy=PATIENT)
        stream = graph.astream(turn(), CONFIG, stream_mode="messages")
        items = [await anext(stream)]
        await hold.reached()
        await stop(supervisor, "immediate")
        assert [chunk.text for chunk, _ in await rest(stream, items) if chunk.text] == ["one ", "two "]


async def test_a_graph_goes_on_only_when_its_reader_asks_for_more():
    async with stoppable.Supervisor() as supervisor:
        talk = Talk(supervisor, stream_mode="custom")
        talk.hold.release()
        stream = talk.read()
        for number in range(CHUNKS):
            assert await anext(stream) == number
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert not talk.has_next_begun, "the graph ran ahead of its reader"
        assert [item async for item in stream] == []
        assert talk.has_next_begun


async def test_a_subgraph_does_not_deliver_its_chunks_in_place_of_those_of_the_graph():
    """Chunks of a graph that a node calls for itself are not in the stream, also after a stop."""
    hold = Held()

    async def below(state):
        get_stream_writer()("below")
        await hold.wait_async()

    inner = StateGraph(MessagesState).add_node("below", below).add_edge(START, "below").compile()

    async def above(state):
        get_stream_writer()("above")
        async for _ in inner.astream(turn(), stream_mode="custom"):
            pass

    async with stoppable.Supervisor() as supervisor:
        builder = StateGraph(MessagesState).add_node("above", above).add_edge(START, "above")
        graph = stoppable_graph(builder.compile(InMemorySaver()), supervisor, policy=PATIENT)
        stream = graph.astream(turn(), CONFIG, stream_mode=["custom", "updates"])
        items = [await anext(stream)]
        await hold.reached()
        await stop(supervisor, "immediate")
        assert await rest(stream, items) == [("custom", "above")]


async def test_an_answer_that_was_complete_in_the_moment_of_the_stop_is_in_the_partial():
    model = Scripted("a whole answer")

    async def talk(state):
        await model.ainvoke(state["messages"])
        stop_at_once()
        await asyncio.sleep(DEADLINE)

    graph = stoppable_graph(StateGraph(MessagesState).add_node("talk", talk).add_edge(START, "talk").compile())
    outcome = await (await stoppable.spawn(graph, turn(), policy=PATIENT)).outcome()
    assert (outcome.status, outcome.partial) == ("stopped", "a whole answer")
