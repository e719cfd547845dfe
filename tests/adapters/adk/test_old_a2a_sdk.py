"""google-adk 1.x needs a2a-sdk 0.3: a stop does not reach a RemoteA2aAgent there, and that is said."""

import pytest
from google.adk.runners import InMemoryRunner
from google.genai import types

import stoppable
from stoppable.adapters.adk import names, remotes, wrap

pytestmark = pytest.mark.skipif(names.WORKFLOW is not None, reason="this google-adk takes a newer a2a-sdk")


async def test_an_agent_that_a_stop_does_not_reach_is_warned_of_once(caplog):
    from google.adk.agents.remote_a2a_agent import RemoteA2aAgent

    remotes._follow.cache_clear()
    far = RemoteA2aAgent(name="far", agent_card="http://127.0.0.1:1/card.json")
    async with stoppable.Supervisor() as supervisor:
        runner = wrap(InMemoryRunner(agent=far, app_name="app"), supervisor)
        await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        for _ in range(2):
            events = [event async for event in runner.run_async(user_id="ann", session_id="s", new_message=message)]
            assert "Failed to initialize remote A2A agent" in events[-1].error_message
        await runner.close()
        await far.cleanup()
    warned = [record.getMessage() for record in caplog.records if record.name == "stoppable.adapters.adk"]
    assert len(warned) == 1
    assert "does not reach the tasks of a RemoteA2aAgent" in warned[0]
