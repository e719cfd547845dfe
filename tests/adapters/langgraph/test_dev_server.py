"""LangGraph's own server (`langgraph dev`) loads a stoppable graph, and a thread that it cancelled can be used on."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ...waiting import wait_until

pytest.importorskip("langgraph_api", reason="langgraph-cli[inmem] has an environment of its own: make test-langgraph")

ROOT = Path(__file__).parents[3]
DEADLINE = 120

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


@contextlib.contextmanager
def dev_server(folder):
    """Serve a folder as `langgraph dev` does, and return the address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser", "--no-reload"]
    offline = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env={**os.environ, **offline},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE) as http:
            wait_until(lambda: process.poll() is not None or _is_up(http), DEADLINE)
            assert process.poll() is None, (folder / "log").read_text()
            yield http
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait(5)


def _is_up(http):
    with contextlib.suppress(httpx.TransportError):
        return http.get("/ok", timeout=5).status_code == 200


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
