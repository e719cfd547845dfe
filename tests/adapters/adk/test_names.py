"""What this adapter stands on in google-adk; a version that changes one of these names fails here first."""

import inspect

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.llm_agent import LlmAgent
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.runners import Runner

from stoppable.adapters.adk import names


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_the_private_names_are_there():
    assert names.missing() == []


def test_the_methods_that_are_wrapped_take_what_they_took():
    assert parameters(BaseAgent.run_async) == parameters(BaseAgent.run_live) == ["self", "parent_context"]
    assert parameters(PluginManager.run_before_tool_callback) == ["self", "tool", "tool_args", "tool_context"]
    assert {"user_id", "session_id", "new_message", "invocation_id"} <= set(parameters(Runner.run_async))
    assert {"user_id", "session_id", "session", "live_request_queue"} <= set(parameters(Runner.run_live))
    assert isinstance(inspect.getattr_static(LlmAgent, "canonical_model"), property)
    if names.NODE_RUNNER is not None:
        assert inspect.iscoroutinefunction(inspect.unwrap(names.NODE_RUNNER.run))


def test_the_runner_of_sync_tools_is_a_context_variable_without_a_default():
    assert names.SYNC_RUNNER.get() is None


def test_the_server_is_found_behind_its_app(tmp_path):
    app = get_fast_api_app(agents_dir=str(tmp_path), session_service_uri="memory://", web=False)
    assert isinstance(names.server_of(app), names.SERVER)
    assert parameters(names.server_of(app).get_runner_async) == ["app_name"]


def test_the_methods_that_make_what_runs_share_are_there():
    [(manager, create), *_] = names.makers_of_shared()
    assert manager.__name__ == "MCPSessionManager"
    assert inspect.iscoroutinefunction(inspect.unwrap(getattr(manager, create)))


def test_an_agent_on_another_server_makes_its_client_where_it_did():
    from google.adk.agents.remote_a2a_agent import RemoteA2aAgent

    far = RemoteA2aAgent(name="far", agent_card="http://127.0.0.1:1/card.json")
    assert names.is_remote(far)
    resolve = inspect.unwrap(getattr(RemoteA2aAgent, names.RESOLVE))
    assert inspect.iscoroutinefunction(resolve)
    if names.WORKFLOW is None:
        assert inspect.signature(resolve).return_annotation == "None"
        assert names.client_of(far) is None
    else:
        assert inspect.signature(resolve).return_annotation == "A2AClient"
    assert names.address_of(far) is None
