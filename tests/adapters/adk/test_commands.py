"""`adk web` and `adk api_server`, unmodified, with one line in services.py; and the example app."""

import asyncio
import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from .serving import Client, asked
from .world import DEADLINE

ROOT = Path(__file__).parents[3]
AGENTS = ROOT / "examples/adk_app/agents"


@contextlib.contextmanager
def process(*command, cwd, fds=(), **environment):
    """Run a server in a process of its own, and yield its address and a function that waits for a line it says."""
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore", **environment}
    running = subprocess.Popen(
        [sys.executable, *command],
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=fds,
    )
    lines, said = queue.Queue(), []
    reader = threading.Thread(target=lambda: [lines.put(line) for line in running.stdout], daemon=True)
    reader.start()

    def hear(pattern):
        while not (found := re.search(pattern, "".join(said))):
            try:
                said.append(lines.get(timeout=3 * DEADLINE))  # its imports take long on a busy machine
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in: {''.join(said)}") from None
        return found

    try:
        yield hear
    finally:
        running.kill()
        running.wait(DEADLINE)
        reader.join(DEADLINE)
        running.stdout.close()


@pytest.mark.parametrize("command", ["web", "api_server"])
async def test_one_line_in_services_makes_the_commands_of_adk_stoppable(tmp_path, command):
    arguments = ["-m", "google.adk.cli", command, "--port", "0", "--session_service_uri", "memory://", str(AGENTS)]
    with process(*arguments, cwd=tmp_path) as hear:
        hear("stoppable is active")
        url = hear(r"Uvicorn running on (http://\S+)")[1]
        async with Client(SimpleNamespace(url=url), "writer") as client:
            async with asked(client) as answer:
                async with asyncio.timeout(DEADLINE):
                    while not (await client.http.get("/stoppable/runs?status=running")).json()["runs"]:
                        await asyncio.sleep(0.02)
                response = await client.cancel(mode="immediate", wait=20)
                assert response.json()["status"] == "stopped", response.text
            assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
            assert (await client.http.get("/stoppable/")).status_code == 200


async def test_the_example_runs(tmp_path):
    code = "import main, uvicorn; uvicorn.run(main.app, port=0)"
    with process("-c", code, cwd=ROOT / "examples/adk_app") as hear:
        url = hear(r"Uvicorn running on (http://\S+)")[1]
        async with Client(SimpleNamespace(url=url), "writer") as client:
            told, answers = [], []
            async for event in client.stream("the sea"):
                told.append(event)
                if len(told) == 5:
                    answers.append(await client.cancel())
            assert [answer.status_code for answer in answers] == [200]
            assert told[-1]["errorCode"] == "INVOCATION_ABORTED"
            assert len(told) < 200, "it wrote on"
            assert "word0 word1 " in str((await client.events())[-1])
