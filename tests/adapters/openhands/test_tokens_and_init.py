"""Tokens that stay true, and interrupts while an agent is still being initialized."""

import asyncio
import threading

import pytest
from openhands.sdk import Agent, Conversation, Tool, register_tool

from stoppable.adapters.openhands import run_of, supervise

from .world import DEADLINE, HoldTool, Scripted, asks, converse, hold, interrupts, says, status
from .world import world as the_world


class SlowTool(HoldTool):
    """A tool that takes its time to be made."""

    name = "slow"

    @classmethod
    def create(cls, conv_state=None, **params):
        the_world.hold("init")
        return super().create(conv_state, **params)


register_tool("slow", SlowTool)


def on_a_thread(function):
    """Return what a thread that belongs to nobody gets."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(DEADLINE)
    return found[0]


async def test_the_token_is_there_during_a_run_and_cancelled_after_an_interrupt_and_fresh_for_the_next(world, tmp_path):
    conversation = supervise(converse(tmp_path, asks(hold("next")), says("done"), held="hanging"))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter hanging")
    during = conversation.cancel_token
    assert not during.is_cancelled
    conversation.interrupt()
    await running
    after = conversation.cancel_token
    assert after == during
    assert after.is_cancelled
    assert on_a_thread(lambda: conversation.cancel_token.is_cancelled) is True
    again = asyncio.create_task(conversation.arun())
    await world.saw("enter next")
    fresh = conversation.cancel_token
    assert fresh != during
    assert not fresh.is_cancelled
    assert during.is_cancelled
    world.release("next")
    await again
    assert conversation.cancel_token is None  # as plain OpenHands after a run that ended by itself
    assert during.is_cancelled
    assert not fresh.is_cancelled
    conversation.close()


async def test_a_token_stops_the_run_that_it_belongs_to(world, tmp_path):
    conversation = supervise(converse(tmp_path, asks(hold("a", obeys=True)), says("done")))
    running = asyncio.create_task(conversation.arun())
    await world.saw("enter a")
    conversation.cancel_token.cancel()
    await running
    assert run_of(conversation).outcome.status == "stopped"
    conversation.close()


@pytest.fixture
def uninitialized(tmp_path, world):
    agent = Agent(llm=Scripted.from_messages([says("done")]), tools=[Tool(name="slow")])
    conversation = supervise(Conversation(agent=agent, workspace=str(tmp_path), visualizer=None, stuck_detection=False))
    yield conversation
    world.release_all()
    conversation.close()


async def test_an_interrupt_while_the_agent_is_initialized_is_taken(world, uninitialized):
    running = asyncio.create_task(uninitialized.arun())
    await world.saw("enter init")
    uninitialized.interrupt()
    run = run_of(uninitialized)
    async with asyncio.timeout(DEADLINE):
        while run.outcome is None and run.receipt.delivered_at is None:
            await asyncio.sleep(0.002)  # the loop is not blocked
    assert "finish init" not in world.notes
    world.release("init")
    await running
    assert run.outcome.status == "stopped"
    assert status(uninitialized) == "paused"
    assert interrupts(uninitialized) == 1
    assert "model" not in world.notes
    uninitialized.send_message("again")
    await uninitialized.arun()
    assert status(uninitialized) == "finished"


async def test_an_interrupt_while_a_message_initializes_the_agent_does_not_block_and_is_kept(world, uninitialized):
    sending = threading.Thread(target=uninitialized.send_message, args=("go",))
    sending.start()
    await world.saw("enter init")
    uninitialized.interrupt()  # its lock is held
    assert "finish init" not in world.notes
    world.release("init")
    sending.join(DEADLINE)
    await uninitialized.arun()
    assert run_of(uninitialized).outcome.status == "stopped"
    assert "model" not in world.notes
    assert status(uninitialized) == "paused"
