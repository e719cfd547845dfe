"""OpenHands' own agent-server, unmodified but for one ``install()``, over HTTP."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from tests.process_states import is_alive
from tests.waiting import until

from stoppable.testing import ModelServer, Reply, Stuck, ToolCall

from ...ports import held_port
from .test_commands import written
from .world import DEADLINE

START_SECONDS = 300  # its packages are large: half a minute of CPU time
pytestmark = pytest.mark.timeout(START_SECONDS + 100)


@pytest.fixture(scope="module")
def model():
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with held_port() as port, (folder / "log").open("w") as log:
        command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("served.py")), str(port), str(folder)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"HOME": str(folder)})
        try:
            yield listening(process, f"http://127.0.0.1:{port}", folder / "log")
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE)
            finally:
                process.kill()
                process.wait(DEADLINE)


def listening(process, url, log):
    """Wait until a server answers, and return its address."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=DEADLINE).status_code == 200:
                return url
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def terminal(command):
    return Reply("", tool_calls=[ToolCall(name="terminal", arguments=json.dumps({"command": command}))])


class Talk:
    """A client of one conversation."""

    def __init__(self, client, url):
        self._client, self.url = client, url

    async def get(self):
        return await self._client.get(self.url)

    async def post(self, path, **more):
        return await self._client.post(self.url + path, **more)


@contextlib.asynccontextmanager
async def conversation(server, model, folder):
    """Start a conversation with the scripted model."""
    llm = {"model": "openai/scripted", "base_url": model.url, "api_key": "none", "usage_id": "agent"}
    tools = [{"name": "terminal", "params": {"terminal_type": "subprocess"}}]
    body = {
        "agent": {"kind": "Agent", "llm": llm, "tools": tools},
        "workspace": {"kind": "LocalWorkspace", "working_dir": str(folder)},
        "autotitle": False,  # it would take an answer of the script
        "initial_message": {"role": "user", "content": [{"type": "text", "text": "go"}], "run": True},
    }
    async with httpx.AsyncClient(timeout=DEADLINE) as client:
        made = await client.post(f"{server}/api/conversations", json=body)
        assert made.status_code in {200, 201}, made.text
        talk = Talk(client, f"{server}/api/conversations/{made.json()['id']}")
        yield talk
        await client.delete(talk.url)


async def reached(client, wanted):
    async with asyncio.timeout(DEADLINE):
        while (now := (await client.get()).json()["execution_status"]) != wanted:
            assert now != "error", (await client.get()).text
            await asyncio.sleep(0.02)


async def say(client, text):
    message = {"role": "user", "content": [{"type": "text", "text": text}], "run": True}
    answer = await client.post("/events", json=message)
    assert answer.status_code == 200, answer.text


async def test_an_interrupt_ends_the_command_and_the_next_message_finishes(server, model, tmp_path):
    model.script(terminal(f"sh -c 'echo $$ > {tmp_path}/started; exec sleep 300'"), Reply("done"))
    async with conversation(server, model, tmp_path) as client:
        pid = await written(tmp_path / "started")
        answer = await client.post("/interrupt")
        assert answer.status_code == 200, answer.text
        # Plain OpenHands answers after five seconds, and the command works on. On a busy machine it may end after them.
        await until(lambda: not is_alive(pid), DEADLINE)
        await reached(client, "paused")
        await say(client, "again")
        await reached(client, "finished")


async def test_an_interrupt_during_a_model_call_is_answered_at_once(server, model, tmp_path):
    model.script(Stuck(), Reply("done"))
    calls = sum(one.requests for one in model.connections)
    async with conversation(server, model, tmp_path) as client:
        async with asyncio.timeout(DEADLINE):
            while sum(one.requests for one in model.connections) == calls:
                await asyncio.sleep(0.01)
        assert (await client.post("/interrupt")).status_code == 200
        await reached(client, "paused")
        await say(client, "again")
        await reached(client, "finished")
