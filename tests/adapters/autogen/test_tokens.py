"""AutoGen's own token: cancelling it stops the run, and no agent or team waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from tests.adapters.scenarios.history import answers_in, is_valid, texts_of
from tests.waiting import until

import stoppable
from stoppable import ReasonKind
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT
from stoppable.testing import Pause, Reply, ToolCall

from .world import DEADLINE, Booking, World, ask, asking, go_on, stop_in

pytestmark = pytest.mark.filterwarnings("ignore")  # of AutoGen


async def ask_with(runner, token):
    return await runner.run(task="A trip, please.", cancellation_token=token)


async def cancel_in(runner, began, token, release=None):
    """Cancel the token of a turn when something in it has begun, and return its outcome."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(ask_with, runner, token)
        await until(began.is_set)
        token.cancel()
        assert handle.run.token.stopped  # at once
        if release is not None:
            release.set()
        outcome = await handle.outcome()
    assert (outcome.status, outcome.reason.kind) == ("stopped", ReasonKind.EXTERNAL)
    assert "CancellationToken" in outcome.reason.message
    return outcome


@pytest.mark.parametrize("in_team", [False, True], ids=["agent", "team"])
async def test_a_cancelled_token_stops_the_run_in_an_async_tool_and_the_next_turn_works(in_team):
    booking, token = Booking(), CancellationToken()
    async with World() as world:
        agent = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        runner = RoundRobinGroupChat([agent], max_turns=1) if in_team else agent
        await cancel_in(runner, booking.began, token)
        await go_on(runner)
        messages = world.messages("booker")
        assert is_valid(messages)
        assert answers_in(messages) == {"book": MAY_HAVE_TAKEN_EFFECT}
        assert len(texts_of(messages, "user")) == 2


async def test_a_cancelled_token_stops_the_run_in_a_sync_tool_which_is_waited_for():
    began, release, effects = threading.Event(), threading.Event(), []

    def book() -> str:
        """Book a trip."""
        began.set()
        assert release.wait(DEADLINE)
        effects.append("booked")
        return "booked"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        await cancel_in(agent, began, CancellationToken(), release)
        assert effects == ["booked"]
        await go_on(agent)
        assert is_valid(world.messages("booker"))


async def test_a_cancelled_token_stops_the_run_in_parallel_tools_and_keeps_what_has_finished():
    booking = Booking()

    async def look_up() -> str:
        """Look up a price."""
        return "cheap"

    calls = [ToolCall(name="look_up", id="1"), ToolCall(name="book", arguments='{"city": "Rome"}', id="2")]
    async with World() as world:
        agent = world.agent("booker", Reply(tool_calls=calls), tools=[look_up, booking.book])
        await cancel_in(agent, booking.began, CancellationToken())
        await go_on(agent)
        assert answers_in(world.messages("booker")) == {"look_up": "cheap", "book": MAY_HAVE_TAKEN_EFFECT}


async def test_a_cancelled_token_stops_a_model_call():
    pause = Pause()
    async with World() as world:
        agent = world.agent("writer", Reply("never", pause=pause))
        token = CancellationToken()
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask_with, agent, token)
            await world.servers["writer"].wait_for_request_async()
            token.cancel()
            assert (await handle.outcome()).status == "stopped"
        pause.end()


async def test_a_token_that_was_cancelled_before_lets_nothing_begin():
    token = CancellationToken()
    token.cancel()
    async with World() as world:
        agent = world.agent("writer")
        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(ask_with, agent, token)).outcome()).status == "stopped"
        assert world.servers["writer"].requests == []


async def test_a_token_whose_agent_has_answered_stops_nothing():
    token = CancellationToken()
    async with World() as world:
        agent = world.agent("writer")

        async def body():
            await ask_with(agent, token)
            token.cancel()
            return (await ask(agent, "Again.")).messages[-1].content

        async with asyncio.timeout(DEADLINE):
            assert await (await stoppable.spawn(body)).result() == "Fine."


async def test_one_token_of_two_runs_stops_both():
    bookings, token = (Booking(), Booking()), CancellationToken()
    async with World() as world, asyncio.timeout(DEADLINE):
        handles = []
        for number, booking in enumerate(bookings):
            agent = world.agent(f"booker{number}", asking("book", city="Rome"), tools=[booking.book])
            handles.append(await stoppable.spawn(ask_with, agent, token))
            await booking.began.wait()
        token.cancel()
        assert [(await handle.outcome()).status for handle in handles] == ["stopped", "stopped"]


async def test_a_tool_sees_the_stop_in_its_token_and_finishes():
    began, seen = asyncio.Event(), []
    stopped = asyncio.Event()

    async def book(cancellation_token: CancellationToken) -> str:
        """Book a trip."""
        seen.append(cancellation_token.is_cancelled())
        began.set()
        await stopped.wait()
        seen.append(cancellation_token.is_cancelled())
        return "given up"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        await stop_in(agent, began, "graceful", stopped)
        await go_on(agent)
        assert answers_in(world.messages("booker")) == {"book": "given up"}
    assert seen == [False, True]


async def test_the_callbacks_of_a_tool_are_called_when_the_stop_cuts_it():
    began, called = threading.Event(), threading.Event()

    def book(cancellation_token: CancellationToken) -> str:
        """Book a trip."""
        cancellation_token.add_callback(called.set)
        began.set()
        assert called.wait(DEADLINE)  # a blocking call that the callback ends
        late = []
        cancellation_token.add_callback(lambda: late.append(cancellation_token.is_cancelled()))
        assert late == [True]
        return "given up"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, agent, "A trip, please.")
            await until(began.is_set)
            await handle.stop("immediate")
            assert (await handle.outcome()).status == "stopped"


async def test_a_tool_that_cancels_its_token_stops_the_run():
    async def book(cancellation_token: CancellationToken) -> str:
        """Book a trip."""
        cancellation_token.cancel()
        await asyncio.sleep(DEADLINE)
        return "booked"

    async with World() as world:
        agent = world.agent("booker", asking("book"), tools=[book])
        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(ask, agent, "A trip.")).outcome()).status == "stopped"


async def test_outside_a_run_a_token_works_as_before():
    token, pause = CancellationToken(), Pause()
    async with World() as world:
        agent = world.agent("writer", Reply("never", pause=pause))
        async with asyncio.timeout(DEADLINE):
            task = asyncio.create_task(ask_with(agent, token))
            await world.servers["writer"].wait_for_request_async()
            token.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        pause.end()
