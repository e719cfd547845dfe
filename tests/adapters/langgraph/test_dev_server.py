"""LangGraph's own server (`langgraph dev`) loads a stoppable graph, and a thread that it cancelled can be used on."""

from __future__ import annotations

import json

import pytest

from ...waiting import wait_until
from .dev_server import DEADLINE, dev_server

pytest.importorskip("langgraph_api", reason="langgraph-cli[inmem] has an environment of its own: make test-langgraph")

GRAPH = """
import asyncio
import pathlib
from langchain_core.tools import tool
from stoppable.adapters.langgraph import stoppable_graph
from tests.adapters.langgraph import cases
from tests.adapters.langgraph.scripted import Scripted, calls

@tool
async def book() -> str:
    "Book it."
    pathlib.Path("booking").touch()
    await asyncio.sleep(600)
    return "booked"

graph = stoppable_graph(cases.agent_graph(Scripted(calls("book")), [book]))
"""


def post(http, path, **body):
    answer = http.post(path, json=body)
    assert answer.status_code < 300, answer.text
    return answer.json()


def message(text):
    return {"messages": [{"role": "user", "content": text}]}


@pytest.mark.timeout(3 * DEADLINE)
def test_langgraph_dev_loads_a_stoppable_graph_and_its_cancel_leaves_the_thread_usable(tmp_path):
    (tmp_path / "my.py").write_text(GRAPH)
    (tmp_path / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"ours": "./my.py:graph"}}))
    with dev_server(tmp_path) as http:
        assert [one["graph_id"] for one in post(http, "/assistants/search")] == ["ours"]
        thread = f"/threads/{post(http, '/threads')['thread_id']}"
        run = f"{thread}/runs/{post(http, f'{thread}/runs', assistant_id='ours', input=message('go'))['run_id']}"
        wait_until((tmp_path / "booking").exists, DEADLINE)
        assert http.post(f"{run}/cancel", params={"wait": 1, "action": "interrupt"}).status_code < 300
        assert http.get(run).json()["status"] == "interrupted"
        state = http.get(f"{thread}/state").json()
        assert [one["type"] for one in state["values"]["messages"]] == ["human", "ai", "tool"]
        answer = post(http, f"{thread}/runs/wait", assistant_id="ours", input=message("hello?"))
        assert answer["messages"][-1]["content"] == "done"
