"""What only Strands has: readers of its streams, executors, hooks, sessions, graphs, swarms, questions to the user."""

import asyncio
import contextlib
import threading

import pytest
from strands import Agent, tool
from strands.hooks import AfterToolCallEvent, BeforeToolCallEvent
from strands.multiagent import GraphBuilder, Swarm
from strands.session.file_session_manager import FileSessionManager
from strands.tools.executors import SequentialToolExecutor
from tests.adapters.strands.conftest import DEADLINE, PATIENT, Booking, agent_of, asking, shape, stop_in_tool
from tests.waiting import until

import stoppable
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.testing import ModelServer, Pause, Reply

MODES = pytest.mark.parametrize("mode", ["graceful", "immediate"])


def fate_of_booking(mode):
    return "booked" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT


async def test_a_reader_that_is_cut_with_an_event_in_its_hands_leaves_an_agent_that_can_be_used_at_once():
    booking, holds = Booking(), asyncio.Event()

    @tool
    async def count():
        """Count aloud."""
        yield "one"
        await asyncio.sleep(DEADLINE)

    with ModelServer(asking("book", "count"), Reply("Fine.")) as server:
        agent = agent_of(server, booking.book, count)

        async def turn():
            async for event in agent.stream_async("A trip, please."):
                if "tool_stream_event" in event:
                    holds.set()
                    await asyncio.sleep(DEADLINE)

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await holds.wait()
            await booking.began.wait()
            await handle.stop("immediate")
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
            assert shape(agent.messages)[-2:] == [MAY_HAVE_TAKEN_EFFECT] * 2
            assert str(await agent.invoke_async("Still there?")) == "Fine.\n"


async def test_a_reader_that_meets_the_stop_itself_does_not_cut_a_tool():
    booking, holds, may_go_on = Booking(), asyncio.Event(), asyncio.Event()

    @tool
    async def count():
        """Count aloud."""
        yield "one"

    with ModelServer(asking("book", "count")) as server:
        agent = agent_of(server, booking.book, count)

        async def turn():
            async with contextlib.aclosing(agent.stream_async("A trip, please.")) as events:
                async for event in events:
                    if "tool_stream_event" in event:
                        holds.set()
                        await may_go_on.wait()
                        stoppable.check()

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn, policy=PATIENT)
            await holds.wait()
            await booking.began.wait()
            await handle.stop()
            may_go_on.set()
            for _ in range(200):
                await asyncio.sleep(0)
            assert "tool:book" in handle.run.in_flight
            booking.release.set()
            outcome = await handle.outcome()
        assert (outcome.status, outcome.rung) == (stoppable.Status.STOPPED, stoppable.Rung.SIGNAL)
        assert "booked" in shape(agent.messages)
        assert len(shape(agent.messages)) == 5


async def test_a_reader_that_leaves_early_ends_the_agent():
    booking = Booking()
    with ModelServer(asking("book"), Reply("Fine.")) as server:
        agent = agent_of(server, booking.book)

        async def turn():
            async with contextlib.aclosing(agent.stream_async("A trip, please.")) as events:
                async for event in events:
                    if "message" in event:
                        break
            return str(await agent.invoke_async("Still there?"))

        async with asyncio.timeout(DEADLINE):
            assert await (await stoppable.spawn(turn)).result() == "Fine.\n"
        assert booking.count == 0  # nothing that its reader has not asked for


async def test_a_cancel_by_other_code_ends_the_agents_and_their_tools():
    booking = Booking()
    with ModelServer(asking("desk", input="A trip"), asking("book"), default=Reply("Fine.")) as server:
        desk = agent_of(server, booking.book, name="desk")
        front = agent_of(server, desk.as_tool(name="desk", description="books"))

        async def turn():
            others = asyncio.all_tasks()
            call = asyncio.create_task(front.invoke_async("A trip, please."))
            await booking.began.wait()
            for _ in range(3):  # as when a loop is closed, which cancels each task, and they cancel each other
                for task in asyncio.all_tasks() - others:
                    task.cancel()
                await asyncio.sleep(0)
            with contextlib.suppress(asyncio.CancelledError):
                await call
            return str(await front.invoke_async("Still there?"))

        async with asyncio.timeout(DEADLINE):
            assert await (await stoppable.spawn(turn)).result() == "Fine.\n"


async def test_the_clean_up_of_a_tool_is_not_cut_by_a_second_cancel():
    began, cleaning, may_end, is_clean = (asyncio.Event() for _ in range(4))

    @tool
    async def book() -> str:
        """Book a trip."""
        began.set()
        try:
            await asyncio.sleep(DEADLINE)
        finally:
            cleaning.set()
            await may_end.wait()
            is_clean.set()

    with ModelServer(asking("book")) as server:
        agent = agent_of(server, book)

        async def turn():
            await agent.invoke_async("A trip, please.")

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await began.wait()
            await handle.stop("immediate")
            await cleaning.wait()
            for _ in range(200):
                await asyncio.sleep(0)
            assert handle.run.outcome is None  # the run waits for it
            may_end.set()
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
        assert is_clean.is_set()
        assert shape(agent.messages)[-1] == MAY_HAVE_TAKEN_EFFECT


@MODES
async def test_a_tool_that_would_come_next_never_begins_and_the_model_is_told(mode):
    booking, begun = Booking(), []

    @tool
    def pay() -> str:
        """Pay."""
        begun.append("pay")
        return "paid"

    with ModelServer(asking("book", "pay")) as server:
        agent = agent_of(server, booking.book, pay, tool_executor=SequentialToolExecutor())

        async def turn():
            await agent.invoke_async("A trip, please.")

        await stop_in_tool(turn, booking, mode)
        assert shape(agent.messages)[-2:] == [fate_of_booking(mode), NO_EFFECT]
    assert begun == []


async def test_a_result_is_kept_as_hooks_have_changed_it():
    booking, looked_up = Booking(), asyncio.Event()

    @tool
    async def look_up() -> str:
        """Look up a price."""
        return "secret price"

    def redact(event: AfterToolCallEvent) -> None:
        if event.tool_use["name"] == "look_up":
            event.result = {**event.result, "content": [{"text": "price"}]}
            looked_up.set()

    with ModelServer(asking("look_up", "book")) as server:
        agent = agent_of(server, look_up, booking.book)

        async def turn():
            await agent.invoke_async("A trip, please.")

        agent.add_hook(redact, AfterToolCallEvent)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await booking.began.wait()
            await looked_up.wait()
            await handle.stop("immediate")
            await handle.outcome()
        assert shape(agent.messages)[-2:] == ["price", MAY_HAVE_TAKEN_EFFECT]


async def test_a_tool_that_looks_ends_and_the_tools_beside_it_finish():
    booking, looking = Booking(), threading.Event()

    @tool
    def work() -> str:
        """Work until the run is stopped."""
        looking.set()
        while True:
            stoppable.sync.sleep(0.001)

    with ModelServer(asking("work", "book")) as server:
        agent = agent_of(server, work, booking.book)

        async def turn():
            await agent.invoke_async("A trip, please.")

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await booking.began.wait()
            await until(looking.is_set)
            await handle.stop()
            await until(lambda: "tool:work" not in handle.run.in_flight)
            booking.release.set()
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
        assert shape(agent.messages)[-2:] == [MAY_HAVE_TAKEN_EFFECT, "booked"]


@MODES
async def test_messages_that_a_session_manager_saves_are_complete(mode, tmp_path):
    booking = Booking()
    with ModelServer(asking("book"), Reply("Fine.")) as server:

        def restored():
            manager = FileSessionManager(session_id="ann", storage_dir=str(tmp_path))
            return agent_of(server, booking.book, session_manager=manager, agent_id="desk")

        agent = restored()

        async def turn():
            await agent.invoke_async("A trip, please.")

        await stop_in_tool(turn, booking, mode)
        again = restored()
        assert shape(again.messages) == ["user: A trip, please.", "calls book", fate_of_booking(mode)]
        assert str(await again.invoke_async("Still there?")) == "Fine.\n"


@MODES
async def test_an_agent_that_is_a_tool_and_keeps_its_messages_can_be_used_again(mode):
    booking = Booking()
    with ModelServer(asking("desk", input="A trip"), asking("book"), default=Reply("Fine.")) as server:
        desk = agent_of(server, booking.book, name="desk")
        front = agent_of(server, desk.as_tool(name="desk", description="books", preserve_context=True))

        async def turn():
            await front.invoke_async("A trip, please.")

        handle = await stop_in_tool(turn, booking, mode)
        assert shape(desk.messages) == ["user: A trip", "calls book", fate_of_booking(mode)]
        assert shape(front.messages) == ["user: A trip, please.", "calls desk", MAY_HAVE_TAKEN_EFFECT]
        assert handle.run.partial is None
        async with asyncio.timeout(DEADLINE):
            assert str(await desk.invoke_async("Still there?")) == "Fine.\n"


async def test_only_the_text_for_the_user_is_the_partial():
    pause = Pause()
    with ModelServer(
        Reply("I ask.", tool_calls=asking("desk", input="A trip").tool_calls),
        Reply("For the front only."),
        Reply("one two three", pause=pause),
    ) as server:
        desk = agent_of(server, name="desk")
        front = agent_of(server, desk.as_tool(name="desk", description="books"))

        async def turn():
            await front.invoke_async("A trip, please.")

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            pause.release(2)
            await until(lambda: "two" in str(handle.run.partial))
            await handle.stop("immediate")
            outcome = await handle.outcome()
        assert outcome.partial == "I ask.one two"
        assert shape(front.messages)[-1] == "assistant: one two"


@MODES
async def test_the_stream_of_an_agent_that_is_a_tool_ends(mode):
    pause = Pause()
    with ModelServer(asking("desk", input="A trip"), Reply("one two three four", pause=pause)) as server:
        desk = agent_of(server, name="desk")
        front = agent_of(server, desk.as_tool(name="desk", description="books", preserve_context=True))
        said = []

        async def turn():
            async for event in front.stream_async("A trip, please."):
                if "tool_stream_event" in event:
                    said.append(event["tool_stream_event"]["data"].get("data", ""))

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn, policy=PATIENT)
            pause.release(2)
            await until(lambda: "two" in "".join(said))
            await handle.stop(mode)
            pause.release()
            outcome = await handle.outcome()
        assert outcome.status is stoppable.Status.STOPPED
        assert mode == "immediate" or outcome.rung is stoppable.Rung.SIGNAL  # nothing had to be forced
        assert shape(desk.messages)[-1].startswith("assistant: one two")
        assert shape(front.messages)[-1] == MAY_HAVE_TAKEN_EFFECT
        assert outcome.partial is None


@MODES
async def test_a_graph_lets_a_node_finish_its_tool_and_begins_no_other_node(mode):
    booking, pause = Booking(), Pause()
    with ModelServer(Reply("one two three", pause=pause)) as talking, ModelServer(asking("book")) as working:
        talker, worker, last = agent_of(talking), agent_of(working, booking.book), agent_of(working)
        builder = GraphBuilder().set_max_node_executions(10)
        nodes = [builder.add_node(agent, name) for agent, name in ((talker, "talker"), (worker, "worker"))]
        builder.add_node(last, "last")
        for node in nodes:
            builder.add_edge(node, "last")
        graph, results = builder.build(), []

        async def turn():
            results.append(await graph.invoke_async("A trip, please."))

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn, policy=PATIENT)
            pause.release(2)
            await booking.began.wait()
            await until(lambda: "two" in str(handle.run.partial))
            await handle.stop(mode)
            pause.release()
            if mode == "graceful":
                await until(lambda: "llm:small" not in handle.run.in_flight)
                assert handle.run.outcome is None  # one node that has stopped does not cut the other
                booking.release.set()
            outcome = await handle.outcome()
        assert outcome.status is stoppable.Status.STOPPED
        assert mode == "immediate" or outcome.rung is stoppable.Rung.SIGNAL  # nothing had to be forced
        assert shape(talker.messages)[-1].startswith("assistant: one two")
        assert shape(worker.messages)[-1] == fate_of_booking(mode)
        assert last.messages == []
        assert results == []


@MODES
async def test_a_swarm_stops_in_the_agent_that_was_handed_the_task(mode):
    booking = Booking()
    handoff = asking("handoff_to_agent", agent_name="booker", message="book it")
    with ModelServer(handoff, Reply("Handed over."), asking("book")) as server:
        desk, booker = agent_of(server, name="desk"), agent_of(server, booking.book, name="booker")
        swarm = Swarm([desk, booker], entry_point=desk)

        async def turn():
            await swarm.invoke_async("A trip, please.")

        await stop_in_tool(turn, booking, mode)
        assert shape(booker.messages)[-2:] == ["calls book", fate_of_booking(mode)]


@MODES
async def test_an_agent_that_is_called_without_await_is_stopped(mode):
    began, release = threading.Event(), threading.Event()

    @tool
    def book() -> str:
        """Book a trip."""
        began.set()
        release.wait(DEADLINE)
        return "booked"

    with ModelServer(asking("book"), Reply("Fine.")) as server:
        agent = agent_of(server, book)

        def turn():
            agent("A trip, please.")

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await until(began.is_set)
            await handle.stop(mode)
            release.set()
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
        assert shape(agent.messages)[-1] in ("booked", fate_of_booking(mode))
        assert str(await asyncio.to_thread(agent, "Still there?")) == "Fine.\n"


async def test_a_turn_that_was_resumed_with_the_answer_of_the_user_can_be_stopped():
    booking = Booking()

    def ask(event: BeforeToolCallEvent) -> None:
        event.interrupt("sure", reason="it is expensive")

    with ModelServer(asking("book"), Reply("Fine.")) as server:
        agent = agent_of(server, booking.book)
        agent.add_hook(ask, BeforeToolCallEvent)

        async def turn():
            question = (await agent.invoke_async("A trip, please.")).interrupts[0]
            await agent.invoke_async([{"interruptResponse": {"interruptId": question.id, "response": "yes"}}])

        await stop_in_tool(turn, booking, "immediate")
        assert shape(agent.messages)[1:] == ["calls book", MAY_HAVE_TAKEN_EFFECT]
        async with asyncio.timeout(DEADLINE):
            assert str(await agent.invoke_async("Still there?")) == "Fine.\n"


async def test_outside_a_run_everything_is_as_before():
    booking = Booking()
    booking.release.set()
    with ModelServer(asking("book"), Reply("Done."), Reply("Fine.")) as server:
        agent = agent_of(server, booking.book)

        async def turn():
            return str(await agent.invoke_async("A trip, please."))

        async with asyncio.timeout(DEADLINE):
            assert await (await stoppable.spawn(turn)).result() == "Done.\n"
            assert str(await agent.invoke_async("Still there?")) == "Fine.\n"
        assert isinstance(agent, Agent)
        assert shape(agent.messages)[2] == "booked"


async def test_the_cancellation_of_strands_still_works_inside_a_run():
    booking = Booking()
    with ModelServer(asking("book"), Reply("Fine.")) as server:
        agent = agent_of(server, booking.book)

        async def turn():
            result = await agent.invoke_async("A trip, please.")
            return result.stop_reason

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await booking.began.wait()
            agent.cancel()
            booking.release.set()
            assert await handle.result() == "cancelled"
        assert shape(agent.messages)[-1] == "booked"
