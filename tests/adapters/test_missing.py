"""A framework that is not installed is named with the command that installs it; one that is broken says why itself."""

import subprocess
import sys

import pytest

from stoppable._extras import pip_install

FRAMEWORKS = {
    "adk": ("google/adk", "google-adk"),
    "a2a": ("a2a/server/routes", "a2a-sdk"),
    "langgraph": ("langgraph", "langgraph"),
    "llama_index": ("llama_index/core", "llama-index-core"),
    "openai_agents": ("agents", "openai-agents"),
    "mcp": ("mcp", "mcp"),
    "openhands": ("openhands/sdk", "openhands-sdk"),
    "agent_framework": ("agent_framework", "agent-framework"),
    "smolagents": ("smolagents", "smolagents"),
    "strands": ("strands", "strands-agents"),
    "autogen": ("autogen_agentchat", "autogen-agentchat"),
    "crewai": ("crewai", "crewai"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "transformers": ("transformers", "transformers"),
    "claude_agent_sdk": ("claude_agent_sdk", "claude-agent-sdk"),
}


def imported(adapter, path):
    """Return the last line of the error that the import of an adapter ends with."""
    code = f"import sys; sys.path.insert(0, {str(path)!r}); import stoppable.adapters.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_one_that_is_not_installed(adapter, tmp_path):
    package, name = FRAMEWORKS[adapter]
    (tmp_path / f"{package.split('/')[0]}.py").write_text("")  # a module in its place, in which nothing is found
    if "/" not in package:
        (tmp_path / f"{package}.py").write_text(f"raise ModuleNotFoundError('none', name={package!r})")
    said = imported(adapter, tmp_path)
    assert said.startswith(f"ImportError: {name} is not installed: {pip_install(adapter.replace('_', '-'))}")


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_one_that_is_there_and_cannot_be_imported(adapter, tmp_path):
    package, _ = FRAMEWORKS[adapter]
    broken = tmp_path / package
    broken.mkdir(parents=True)
    for directory in [broken, *broken.parents]:
        if directory == tmp_path:
            break
        (directory / "__init__.py").write_text("")
    (broken / "__init__.py").write_text("from json import nothing_of_that_name")
    assert "cannot import name 'nothing_of_that_name'" in imported(adapter, tmp_path)
