"""Objects of a framework are agents through the adapter that an entry point names."""

import sys

import pytest

from stoppable.cli import find_agent
from stoppable.server.hosted_agents import Registry

FRAMEWORK = """
class Graph:
    pass

class Inherited(Graph):
    pass

graph, several, by_name = Graph(), [Graph()], {"mine": Graph()}
"""
ADAPTER = """
def as_agent(value, name):
    async def agent(text):
        return value

    agent.__name__ = name or "graph"
    agent.value = value
    return agent
"""


@pytest.fixture
def framework(tmp_path, monkeypatch):
    """Install a framework and its adapter, and return the module of the framework."""
    (tmp_path / "toy_framework.py").write_text(FRAMEWORK)
    (tmp_path / "toy_adapter.py").write_text(ADAPTER)
    info = tmp_path / "toy_adapter-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-adapter\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stoppable.agents]\ntoy_framework = toy_adapter:as_agent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield __import__("toy_framework")
    for name in ("toy_framework", "toy_adapter"):
        sys.modules.pop(name, None)


def test_the_command_line_finds_them_by_their_attribute(framework):
    (name, agent), *others = find_agent.agents("toy_framework:graph").items()
    assert (name, agent.value, others) == ("graph", framework.graph, [])
    assert find_agent.agent("toy_framework:graph").value is framework.graph
    assert find_agent.agents("toy_framework:several")["graph"].value is framework.several[0]
    assert find_agent.agents("toy_framework:by_name")["mine"].value is framework.by_name["mine"]


@pytest.mark.parametrize("make", [lambda one: one, lambda one: [one], lambda one: {"graph": one}])
def test_the_server_takes_them_alone_in_a_list_and_by_name(framework, make):
    registry = Registry(make(framework.graph))
    assert list(registry) == ["graph"]
    assert registry["graph"].value is framework.graph


def test_a_class_that_inherits_from_one_of_the_framework_is_recognised(framework):
    inherited = type("Own", (framework.Inherited,), {})()
    assert Registry(inherited)["graph"].value is inherited


def test_what_no_adapter_is_for_stays_as_it_is():
    async def agent():
        pass

    assert Registry([agent])["agent"] is agent
    with pytest.raises(TypeError):
        Registry(object())
