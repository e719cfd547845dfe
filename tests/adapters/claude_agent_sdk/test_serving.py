"""Options of the SDK are served as they are, and sessions go on after a stop."""

from __future__ import annotations

import pytest
from tests.adapters.claude_agent_sdk.world import DEADLINE, PATIENT
from tests.adapters.scenarios.history import texts_of
from tests.waiting import until

import stoppable
from stoppable._engine.agent_functions import adapt_object
from stoppable.adapters.claude_agent_sdk import as_agent
from stoppable.testing import Pause, Reply

pytestmark = pytest.mark.timeout(3 * DEADLINE)  # most start several CLIs


async def test_options_are_an_agent_whose_session_goes_on_after_a_stop(world):
    pause = Pause()
    pause.release(2)
    world.server.script(Reply("one two three", pause=pause))
    agent = adapt_object(world.options(), "desk")
    assert agent.__name__ == "desk"
    async with stoppable.Supervisor() as supervisor:
        ann = {"session_id": "1", "key": "ann", "policy": PATIENT}
        handle = await supervisor.start(agent, "Count.", **ann)
        await until(lambda: handle.run.partial == "one two", DEADLINE)
        await supervisor.stop(key="ann")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.partial) == ("stopped", "one two")
        handle = await supervisor.start(agent, "Go on.", **ann)
        assert (await handle.outcome()).result == "Fine."
    assert "one two" in texts_of(world.server.requests[-1].messages, "assistant")


async def test_the_same_session_id_of_two_owners_is_two_sessions(world):
    agent = as_agent(world.options())
    async with stoppable.Supervisor() as supervisor:
        for owner in ("ann", "bob", "ann"):
            handle = await supervisor.start(agent, f"I am {owner}.", session_id="1", owner=owner)
            assert (await handle.outcome()).result == "Fine."
    said = ["".join(texts_of(request.messages, "user")) for request in world.server.requests]
    assert ["I am ann." in said[2], "I am bob." in said[2], "I am ann." in said[1]] == [True, False, False]


async def test_a_turn_waits_for_the_one_before_it_and_a_stop_ends_the_wait(world):
    pause = Pause()
    world.server.script(Reply("one", pause=pause))
    agent = as_agent(world.options())
    async with stoppable.Supervisor() as supervisor:
        first = await supervisor.start(agent, "One.", session_id="1", policy=PATIENT)
        await world.server.wait_for_request_async(within=DEADLINE)
        second = await supervisor.start(agent, "Two.", session_id="1", policy=PATIENT)
        await second.stop("immediate")
        assert (await second.outcome()).status == "stopped"
        pause.end()
        assert (await first.outcome()).result == "one"
    assert len(world.server.requests) == 1


@pytest.mark.parametrize("session_id", [None, "1"])
async def test_without_a_session_id_each_message_is_a_session(world, session_id):
    agent = as_agent(world.options())
    for _ in range(2):
        handle = await stoppable.spawn(agent, "Hello.", session_id)
        assert (await handle.outcome()).result == "Fine."
    count = "".join(texts_of(world.server.requests[-1].messages, "user")).count("Hello.")
    assert count == (1 if session_id is None else 2)
