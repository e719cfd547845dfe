"""`make test-langgraph-upstream` really has the adapter on: with its plugin, each call of a graph is a run."""

import os
import subprocess
import sys

from .upstream import PLUGIN

PROBE = """
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langgraph.channels import EphemeralValue
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.pregel import NodeBuilder, Pregel
from typing_extensions import TypedDict

import stoppable

runs = []


class State(TypedDict):
    text: str


def note(given):
    runs.append(stoppable.current_run())
    return given


def test_compiled():
    StateGraph(State).add_node("note", note).add_edge(START, "note").compile(name="compiled").invoke({"text": ""})
    assert [run.name for run in runs] == ["compiled"]


def test_agent():
    def answers():
        note(None)
        yield "hello"

    create_agent(GenericFakeChatModel(messages=answers()), name="agent").invoke({"messages": "hello"})
    assert runs[-1].name == "agent"


def test_entrypoint():
    entrypoint()(note).invoke("")
    assert runs[-1].name == "LangGraph"


def test_built_by_hand():
    node = NodeBuilder().subscribe_only("in").do(note).write_to("out")
    channels = {"in": EphemeralValue(str), "out": EphemeralValue(str)}
    graph = Pregel(nodes={"note": node}, channels=channels, input_channels="in", output_channels="out", name="own")
    list(graph.stream("hello"))
    assert runs[-1].name == "own"
"""


def test_with_the_plugin_each_call_of_a_graph_is_a_run(tmp_path):
    probe = tmp_path / "test_probe.py"
    probe.write_text(PROBE)
    variables = os.environ | {"PYTHONPATH": str(PLUGIN.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN.stem, probe]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, check=False, capture_output=True, text=True, timeout=120
    )
    assert "4 passed" in done.stdout, done.stdout
