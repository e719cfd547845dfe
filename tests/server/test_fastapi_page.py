"""The FastAPI chat of docs/how-to/fastapi.md: as it is, and after the change that the page shows."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from stoppable.testing import Failure, ModelServer, Pause, Reply

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/fastapi.md").read_text()
[PLAIN] = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
[CHANGE] = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
WORDS = ["one ", "two ", "three ", "four "]


def changed():
    """Return the app with the change, each part of which must fit into exactly one place."""
    code = PLAIN
    for part in CHANGE.split("@@\n")[1:]:
        lines = part.splitlines(keepends=True)
        before = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
        after = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
        assert code.count(before) == 1, before
        code = code.replace(before, after)
    return code


@contextlib.contextmanager
def serving(code, folder):
    """Serve an app as its author would, with a scripted model; yield its address and the model."""
    (folder / "chat.py").write_text(code)
    with ModelServer() as model:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "chat:app", "--port", "0"],
            cwd=folder,
            env={**os.environ, "OPENAI_BASE_URL": model.url},
            stderr=subprocess.PIPE,
            text=True,
        )
        killer = threading.Timer(300, process.kill)
        killer.start()
        try:
            said = ""
            while (found := re.search(r"running on (http://\S+)", said)) is None:
                said += (line := process.stderr.readline())
                assert line, f"it does not start: {said}"
            reader = threading.Thread(target=lambda: lines.append(process.stderr.read()), daemon=True)
            lines = []
            reader.start()
            yield found[1], model
            process.terminate()
            process.wait(30)
            reader.join(60)
            assert "Traceback" not in lines[0], lines[0]
        finally:
            process.kill()
            process.wait(60)
            killer.cancel()
            killer.join(60)
            process.stderr.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with serving(changed(), tmp_path_factory.mktemp("changed")) as served:
        yield served


@pytest.fixture
def model(served):
    return served[1]


@pytest.fixture
async def http(served):
    async with httpx.AsyncClient(base_url=served[0], timeout=60) as http:
        yield http


def turn(run_id, *said):
    roles = ["user", "assistant"] * len(said)
    return {
        "run_id": run_id,
        "messages": [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)],
    }


async def events_of(response):
    """Yield the events of a stream, each with its name and data."""
    name = "token"
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
            name = "token"


async def asked(http, run_id, *said):
    async with http.stream("POST", "/chat", json=turn(run_id, *said)) as response:
        return [event async for event in events_of(response)]


def test_the_change_has_at_most_twelve_lines():
    added = [line for line in CHANGE.splitlines() if line.startswith("+") and line != "+"]
    removed = [line for line in CHANGE.splitlines() if line.startswith("-")]
    assert len(added) <= 12
    assert len(removed) <= 2  # in place of which a line is added


async def test_the_chat_answers_before_and_after_the_change(http, model, tmp_path):
    def is_whole(tokens):
        return "".join(data for name, data in tokens if name == "token") == "".join(WORDS) and tokens[-1][0] == "done"

    model.script(Reply(WORDS))
    assert is_whole(await asked(http, "whole", "why?"))
    with serving(PLAIN, tmp_path) as (url, plain_model):
        async with httpx.AsyncClient(base_url=url, timeout=60) as plain:
            plain_model.script(Reply(WORDS))
            assert is_whole(await asked(plain, "whole", "why?"))


async def test_stop_ends_the_stream_and_the_call_of_the_model_and_the_next_turn_works(http, model):
    pause = Pause()
    model.script(Reply(WORDS, pause=pause), Reply("again"))
    before, seen = model.tokens_sent, []
    async with http.stream("POST", "/chat", json=turn("stopped", "why?")) as response:
        events = events_of(response)
        pause.release(2)
        while "two " not in [data for _, data in seen]:
            seen.append(await anext(events))
        stopping = asyncio.create_task(http.post("/agents/runs/stopped/stop?wait=30", json={"reason": "typo"}))
        await stop_is_known(http, "stopped")
        pause.release(1)  # the token that the stop waits for; there are more, and nobody asks for them
        seen += [event async for event in events]
    assert seen[-1] == ("stopped", "typo (ann)")
    assert (await stopping).json()["status"] == "stopped"
    pause.end()
    await model.wait_for_closed_async()
    assert model.tokens_sent <= before + len(WORDS)
    said = "".join(data for name, data in seen if name == "token")
    assert said.startswith("one two ")
    assert "four" not in said
    assert (await asked(http, "next", "why?", said, "go on"))[-1] == ("done", None)
    assert [message["content"] for message in model.requests[-1].body["messages"]] == ["why?", said, "go on"]


async def stop_is_known(http, run_id, *also):
    """Wait until a run was told to stop, or has left other statuses too, and return its record."""
    async with asyncio.timeout(30):
        while (record := (await http.get(f"/agents/runs/{run_id}")).json())["status"] in {"pending", "running", *also}:
            await asyncio.sleep(0.005)
    return record


async def test_stop_before_the_request_arrives_means_that_the_model_is_not_called(http, model):
    before = len(model.requests)
    await http.post("/agents/runs/early/stop?ifUnknown=wait", json={"reason": "typo"})
    assert await asked(http, "early", "why?") == [("stopped", "typo (ann)")]
    assert len(model.requests) == before


async def test_a_browser_that_goes_away_stops_its_run(http, model):
    pause = Pause()
    model.script(Reply(WORDS, pause=pause))
    async with http.stream("POST", "/chat", json=turn("left", "why?")) as response:
        pause.release(1)
        assert await anext(events_of(response)) is not None
    await stop_is_known(http, "left")
    pause.end()
    record = await stop_is_known(http, "left", "stopping")
    assert (record["status"], record["stop"]["reason"]["kind"]) == ("stopped", "disconnect")


async def test_only_the_user_who_asked_can_stop_the_answer(http, model, served):
    pause = Pause()
    model.script(Reply(WORDS, pause=pause))
    async with http.stream("POST", "/chat", json=turn("mine", "why?")) as response:
        async with httpx.AsyncClient(base_url=served[0], cookies={"user": "bob"}, timeout=60) as bob:
            assert (await bob.post("/agents/runs/mine/stop", json={})).status_code == 404
        pause.end()
        assert [name async for name, _ in events_of(response)][-1] == "done"


async def test_a_model_that_fails_is_told_as_before(http, model):
    model.script(Failure(500))
    [(name, said)] = await asked(http, "fails", "why?")
    assert name == "failed"
    assert "500" in said


async def test_the_page_finds_the_button(http):
    page = (await http.get("/")).text
    [script] = re.findall(r'src="(.*?)"', page)
    button = await http.get(script)
    assert (button.status_code, button.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "stoppable-button" in button.text
