"""A compiled graph is served as it is: by the command, by the server, and in the example with its Stop button."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from stoppable.adapters.langgraph import key_of

from ... import served as serving
from ...waiting import wait_until

EXAMPLE = Path(__file__).parents[3] / "examples/langgraph_chat"
DEADLINE = 120
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@contextlib.contextmanager
def served(folder, target):
    """Serve what a module has with the command, and return the address."""
    command = [sys.executable, "-m", "stoppable", "serve", target, "--port", "0"]
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    server = serving.Server(process)
    try:
        yield server.url()
    finally:
        process.kill()
        process.wait(DEADLINE)
        server.close()


@contextlib.contextmanager
def chat(monkeypatch):
    """Serve the example, and return its address."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("main", "graph"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import main

    server = uvicorn.Server(uvicorn.Config(main.app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    finally:
        server.should_exit = True
        thread.join(DEADLINE)
        for name in ("main", "graph"):
            sys.modules.pop(name, None)


def start(http, text, prefix="", **more):
    asked = {"messages": [{"role": "user", "content": text}], "thread_id": "1"}
    answer = http.post(f"{prefix}/runs", json={"agent": "chat", "input": asked, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def follow(http, run_id, until, prefix=""):
    """Read the events of a run until one of a type has come, and return all of them."""
    seen = []
    with http.stream("GET", f"{prefix}/runs/{run_id}/events", timeout=DEADLINE) as events:
        for line in events.iter_lines():
            if line.startswith("event: "):
                seen.append(line.removeprefix("event: "))
            if line.startswith("data: ") and until(seen[-1], json.loads(line.removeprefix("data: "))):
                break
    return seen


def until_said(text):
    """Return a condition of `follow`: the agent has said a text, which comes in pieces."""
    pieces = []

    def is_said(kind, data):
        if kind == "partial":
            pieces.append(data["data"]["delta"])
        return text in "".join(pieces)

    return is_said


def test_the_example_streams_stops_and_talks_on(monkeypatch):
    with chat(monkeypatch) as url, httpx.Client(base_url=url, timeout=DEADLINE) as http:
        run_id = start(http, "hello", "/agents", key=key_of("1"))
        follow(http, run_id, until_said("Sentence 1 "), "/agents")
        receipt = http.post(f"/agents/runs/{run_id}/stop", params={"wait": 30}, json={}).json()["receipt"]
        assert "llm:Storyteller" in receipt["inFlight"]
        record = http.get(f"/agents/runs/{run_id}").json()
        assert record["status"] == "stopped"
        assert record["outcome"]["partial"].startswith("Sentence 1 ")
        said = http.get("/threads/1").json()
        assert [one["type"] for one in said] == ["human", "ai"]
        assert said[1]["content"] == record["outcome"]["partial"]
        assert said[1]["response_metadata"]["stopped"] is True

        looked_up = threading.Event()  # the library is slow until the stop has come
        monkeypatch.setattr(sys.modules["graph"], "time", SimpleNamespace(sleep=lambda _: looked_up.wait(DEADLINE)))
        asking = start(http, "look up the tides", "/agents")
        follow(http, asking, lambda kind, data: kind == "entered" and "look_up" in str(data), "/agents")
        http.post(f"/agents/runs/{asking}/stop", json={})
        looked_up.set()
        stopped = http.post(f"/agents/runs/{asking}/stop", params={"wait": 30}, json={}).json()["receipt"]
        assert stopped["status"] == "stopped"
        assert [one["type"] for one in http.get("/threads/1").json()] == ["human", "ai", "human", "ai", "tool"]


def test_the_command_serves_a_graph_of_a_module(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "DEADLINE", DEADLINE)  # it imports much more than the demo
    shutil.copy(EXAMPLE / "graph.py", tmp_path / "my_graph.py")
    with served(tmp_path, "my_graph:graph") as url, httpx.Client(base_url=url, timeout=DEADLINE) as http:
        (agent,) = http.get("/agents").json()["agents"]
        assert agent["name"] == "graph"
        assert [one["name"] for one in agent["parameters"]] == ["messages", "thread_id"]
        asked = {"messages": "hello", "thread_id": "1"}
        run_id = http.post("/runs", json={"agent": "graph", "input": asked}).json()["id"]
        follow(http, run_id, lambda kind, _: kind == "partial")
        receipt = http.post(f"/runs/{run_id}/stop", params={"wait": 30}, json={}).json()["receipt"]
        assert receipt["status"] == "stopped"


def test_over_the_openai_api_the_turns_of_a_conversation_are_those_of_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "DEADLINE", DEADLINE)
    shutil.copy(EXAMPLE / "graph.py", tmp_path / "my_graph.py")
    with served(tmp_path, "my_graph:graph") as url, httpx.Client(base_url=url, timeout=DEADLINE) as http:
        responses = []
        for _ in range(2):
            asked = {"model": "graph", "input": "hello", "background": True}
            asked["previous_response_id"] = responses[-1]["id"] if responses else None
            run_id = http.post("/v1/responses", json=asked).json()["id"].removeprefix("resp_")
            follow(http, run_id, until_said("Sentence 1"))
            responses.append(http.post(f"/v1/responses/resp_{run_id}/cancel").json())
        for response in responses:
            assert response["status"] == "cancelled"
            assert response["output"][0]["content"][0]["text"].startswith("Sentence 1")
        ids = [response["id"].removeprefix("resp_") for response in responses]
        threads = [http.get(f"/runs/{run_id}").json()["input"]["thread_id"] for run_id in ids]
        assert threads == [ids[0]] * 2


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed")
def test_the_stop_button_of_the_example_stops_the_answer(monkeypatch):
    sync_api = pytest.importorskip("playwright.sync_api")
    with chat(monkeypatch) as url, sync_api.sync_playwright() as playwright:
        words = itertools.count()

        async def sleep(seconds):  # longer after some sentences: no browser is too slow to stop the answer
            await asyncio.sleep(seconds if next(words) < 50 else 1)

        monkeypatch.setattr(sys.modules["graph"], "asyncio", SimpleNamespace(sleep=sleep))
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        page = browser.new_page()
        page.set_default_timeout(DEADLINE * 1000)
        page.goto(url)
        page.get_by_label("Message").fill("hello")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("Sentence 1 of the").wait_for()
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Send").wait_for()  # the run has ended
        assert "Sentence 100" not in page.locator("main").inner_text()
        page.reload()
        page.get_by_text("Sentence 1 of the").wait_for()  # the history has it
        browser.close()
