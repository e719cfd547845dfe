"""Teams of AutoGen: whoever was stopped, the others learn it, and the team can be run again."""

from __future__ import annotations

import asyncio

import pytest
from autogen_agentchat.agents import BaseChatAgent
from autogen_agentchat.base import Response
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.messages import TextMessage
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)
from autogen_core import SingleThreadedAgentRuntime
from tests.adapters.scenarios.history import answers_in, is_valid, texts_of
from tests.waiting import until

import stoppable
from stoppable.adapters.autogen.turns import NO_ANSWER
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT
from stoppable.testing import Pause, Reply

from .world import DEADLINE, Booking, World, ask, asking, go_on, stop_in

pytestmark = pytest.mark.filterwarnings("ignore")  # of AutoGen
MODES = pytest.mark.parametrize("mode", ["graceful", "immediate"])
TRIP, NEXT = "A trip, please.", "Are you still there?"


@MODES
async def test_the_others_learn_what_a_stopped_participant_has_done(mode):
    booking = Booking()
    async with World() as world:
        booker = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        team = RoundRobinGroupChat([booker, world.agent("writer")], max_turns=2)
        _, receipt = await stop_in(team, booking.began, mode, booking.release)
        assert {"node:booker", "tool:book"} <= set(receipt.in_flight)
        assert len(world.servers["writer"].requests) == 0
        result = await go_on(team)
        assert [message.source for message in result.messages] == ["user", "writer", "booker"]
        expected = "booked Rome" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT
        assert texts_of(world.messages("writer"), "user") == [TRIP, f"{expected}\n{NO_ANSWER}", NEXT]
        messages = world.messages("booker")
        assert is_valid(messages)
        assert answers_in(messages) == {"book": expected}
        assert texts_of(messages, "user") == [TRIP, NEXT, "Fine."]
    assert booking.count == 1


@MODES
async def test_text_so_far_is_kept_by_its_agent_and_told_to_the_others(mode):
    pause = Pause()
    async with World() as world:
        speaker = world.agent("speaker", Reply("one two three four", pause=pause), model_client_stream=True)
        team = RoundRobinGroupChat([speaker, world.agent("writer")], max_turns=2)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, team, "Count.")
            pause.release(2)
            await until(lambda: "two" in str(handle.run.partial))
            await handle.stop(mode)
            pause.release()
            said = (await handle.outcome()).partial
        assert said.startswith("one two")
        assert "four" not in said
        await go_on(team)
        assert texts_of(world.messages("writer"), "user") == ["Count.", f"{said}\n{NO_ANSWER}", NEXT]
        assert texts_of(world.messages("speaker"), "assistant") == [said]


@MODES
async def test_the_one_who_chooses_the_next_speaker_is_stopped(mode):
    pause = Pause()
    async with World() as world:
        chooser = world.client("chooser", Reply("writer", pause=pause), Reply("writer"))
        agents = [world.agent("writer"), world.agent("reader")]
        team = SelectorGroupChat(agents, chooser, max_turns=1, allow_repeated_speaker=True)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, team, TRIP)
            await until(lambda: any(label.startswith("llm:") for label in handle.run.in_flight))
            await handle.stop(mode)
            pause.end()
            assert (await handle.outcome()).status == "stopped"
        assert len(world.servers["writer"].requests) == 0
        result = await go_on(team)
        assert [message.source for message in result.messages] == ["user", "writer"]
        assert texts_of(world.messages("writer"), "user") == [TRIP, NEXT]


@MODES
async def test_the_participant_that_was_handed_the_work_is_stopped(mode):
    booking = Booking()
    async with World() as world:
        desk = world.agent("desk", asking("transfer_to_booker", "call-0"), handoffs=["booker"])
        booker = world.agent("booker", asking("book", city="Rome"), tools=[booking.book], handoffs=["desk"])
        team = Swarm([desk, booker], termination_condition=MaxMessageTermination(8))
        await stop_in(team, booking.began, mode, booking.release)
        await go_on(team)
        messages = world.messages("booker")
        assert is_valid(messages)
        assert answers_in(messages)["book"] == ("booked Rome" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT)
    assert booking.count == 1


@MODES
async def test_branches_of_a_graph_finish_within_the_grace_and_the_graph_goes_on_behind_them(mode):
    left, right = Booking(), Booking()
    async with World() as world:
        agents = [
            world.agent("left", asking("book", city="Rome"), tools=[left.book]),
            world.agent("right", asking("book", city="Oslo"), tools=[right.book]),
            world.agent("last"),
        ]
        graph = DiGraphBuilder()
        for agent in agents:
            graph.add_node(agent)
        graph.add_edge("left", "last").add_edge("right", "last")
        team = GraphFlow(agents, graph.build())
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, team, TRIP)
            await left.began.wait()
            await right.began.wait()
            receipt = await handle.stop(mode)
            assert sorted(receipt.in_flight) == ["node:left", "node:right", "tool:book", "tool:book"]
            if mode == "graceful":
                left.release.set()
                right.release.set()
            assert (await handle.outcome()).status == "stopped"
        assert len(world.servers["last"].requests) == 0
        await go_on(team)
        first, *others = texts_of(world.messages("last"), "user")
        assert first == TRIP
        words = ["booked Rome", "booked Oslo"] if mode == "graceful" else [MAY_HAVE_TAKEN_EFFECT] * 2
        assert sorted(others) == sorted([NEXT, *(f"{word}\n{NO_ANSWER}" for word in words)])


@MODES
async def test_an_orchestrator_is_stopped_in_its_plan(mode):
    pause = Pause()
    async with World() as world:
        team = MagenticOneGroupChat([world.agent("writer")], world.client("orchestrator", Reply("Facts.", pause=pause)))
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(ask, team, TRIP)
            await world.servers["orchestrator"].wait_for_request_async()
            await handle.stop(mode)
            pause.end()
            assert (await handle.outcome()).status == "stopped"
        assert len(world.servers["orchestrator"].requests) == 1
        async with asyncio.timeout(DEADLINE):
            await team.reset()


async def test_a_participant_that_was_asked_before_the_stop_and_begins_after_it_keeps_what_it_was_told():
    runs = []

    def choose(_):
        if not runs:
            runs.append(stoppable.current_run())
            runs[0].stop()  # the team has decided to go on, and asks the writer
        return "writer"

    async with World() as world:
        agents = [world.agent("writer"), world.agent("reader")]
        options = {"selector_func": choose, "max_turns": 1}
        team = SelectorGroupChat(agents, world.client("chooser"), **options)
        async with asyncio.timeout(DEADLINE):
            assert (await (await stoppable.spawn(ask, team, TRIP)).outcome()).status == "stopped"
        assert world.servers["writer"].requests == []
        await go_on(team)
        assert texts_of(world.messages("writer"), "user") == [TRIP, NEXT]


async def test_a_stop_counts_as_the_end_of_a_team_so_that_its_conditions_begin_anew():
    booking = Booking()
    async with World() as world:
        booker = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        team = RoundRobinGroupChat(
            [booker, world.agent("writer")], termination_condition=MaxMessageTermination(3, include_agent_event=False)
        )
        await stop_in(team, booking.began, "immediate")
        result = await go_on(team)
        assert [message.source for message in result.messages] == ["user", "writer", "booker"]


class Sleeper(BaseChatAgent):
    """An agent of a user, which knows nothing of stops."""

    def __init__(self, name):
        super().__init__(name, "sleeps")
        self.began = asyncio.Event()
        self.heard = []

    @property
    def produced_message_types(self):
        return (TextMessage,)

    async def on_messages(self, messages, cancellation_token):
        self.heard += [message.content for message in messages]
        if not self.began.is_set():
            self.began.set()
            await asyncio.sleep(DEADLINE)
        return Response(chat_message=TextMessage(content="Good morning.", source=self.name))

    async def on_reset(self, cancellation_token):
        pass


async def test_a_participant_of_the_users_own_is_cut_and_hears_nothing_twice():
    async with World() as world:
        sleeper = Sleeper("sleeper")
        team = RoundRobinGroupChat([sleeper, world.agent("writer")], max_turns=2)
        _, receipt = await stop_in(team, sleeper.began, "immediate")
        assert receipt.in_flight == ("node:sleeper",)
        await go_on(team)
        assert texts_of(world.messages("writer"), "user") == [TRIP, NO_ANSWER, NEXT]
        assert sleeper.heard == [TRIP, NEXT, "Fine."]


@MODES
async def test_a_runtime_that_was_started_elsewhere_takes_part_in_the_run(mode):
    booking, runtime = Booking(), SingleThreadedAgentRuntime()
    runtime.start()  # outside of any run
    async with World() as world:
        booker = world.agent("booker", asking("book", city="Rome"), tools=[booking.book])
        team = RoundRobinGroupChat([booker, world.agent("writer")], max_turns=2, runtime=runtime)
        _, receipt = await stop_in(team, booking.began, mode, booking.release)
        assert "tool:book" in receipt.in_flight
        assert len(world.servers["writer"].requests) == 0
        result = await go_on(team)
        assert [message.source for message in result.messages] == ["user", "writer", "booker"]
        await runtime.stop()
    assert booking.count == 1


async def test_a_team_outside_a_run_is_as_before():
    async with World() as world:
        team = RoundRobinGroupChat([world.agent("writer"), world.agent("reader")], max_turns=2)
        async with asyncio.timeout(DEADLINE):
            result = await team.run(task=TRIP)
        assert [message.source for message in result.messages] == ["user", "writer", "reader"]
