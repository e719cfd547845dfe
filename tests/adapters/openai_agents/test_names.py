"""What this adapter stands on in openai-agents; a version that changes one of these names fails here first."""

import pytest
from agents import Runner
from agents.run import AgentRunner

from stoppable.adapters import openai_agents
from stoppable.adapters.openai_agents import names


def test_the_names_are_there():
    assert names.missing() == []


@pytest.mark.parametrize("path", sorted(names._FUNCTIONS))
def test_a_version_without_one_of_them_is_refused_with_that_name(monkeypatch, path):
    gone = f"{path}_of_another_version"
    monkeypatch.setitem(names._FUNCTIONS, gone, ("self",))
    with pytest.raises(RuntimeError, match=f"lacks {gone}"):
        openai_agents.install()


def test_a_module_that_has_moved_is_missing(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "agents.elsewhere:AgentRunner.run", ("self",))
    assert names.missing() == ["agents.elsewhere:AgentRunner.run"]


def test_every_way_to_run_an_agent_ends_in_the_two_methods_once_they_are_wrapped():
    openai_agents.install()
    wrapped = AgentRunner.run, AgentRunner.run_streamed
    openai_agents.install()
    assert (AgentRunner.run, AgentRunner.run_streamed) == wrapped
    for way in (Runner.run, Runner.run_sync, Runner.run_streamed):
        assert "DEFAULT_AGENT_RUNNER" in way.__func__.__code__.co_names
