"""``stoppable mcp``: its stdout is the protocol alone, and it leaves nothing running when it ends."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest
from mcp.client import Client
from mcp.client.stdio import stdio_client
from tests.waiting import until, wait_until

from stoppable import Supervisor

from .conftest import DEADLINE, MODES, ROOT, command, text_of
from .test_stops import ENVELOPE, tool_call

TOOLS = "tests.surfaces.mcp_server.tools:AGENTS"


@pytest.mark.parametrize("version", MODES)
async def test_what_agents_print_does_not_break_the_protocol(version):
    async with Client(stdio_client(command(TOOLS)), mode=MODES[version]) as client:
        assert client.protocol_version == version
        assert text_of(await client.call_tool("talkative", {"text": "heard"})) == "heard"


def started(*arguments):
    """Start the command as a client does, without the client."""
    words = [sys.executable, "-m", "stoppable", "mcp", *arguments]
    return subprocess.Popen(
        words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def called(process, tool, arguments):
    """Send a call."""
    process.stdin.write(json.dumps(tool_call(tool, arguments, **ENVELOPE)) + "\n")
    process.stdin.flush()


@pytest.mark.parametrize(("how", "code"), [("end of input", 0), (signal.SIGTERM, 143), (signal.SIGINT, 143)], ids=str)
async def test_its_end_stops_the_agents_and_their_ends_are_in_the_store(tmp_path, how, code):
    store, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "agent"
    process = await asyncio.to_thread(started, TOOLS, "--store", store)
    called(process, "marking", {"path": str(path)})
    await until(path.exists, DEADLINE)
    if how == "end of input":
        process.stdin.close()
    else:
        process.send_signal(how)
    assert await asyncio.to_thread(process.wait, DEADLINE) == code
    assert path.with_suffix(".left").exists()
    for pipe in (process.stdin, process.stdout, process.stderr):
        pipe.close()
    async with Supervisor(store) as supervisor:
        [run] = (await supervisor.list()).runs
        assert (run.name, run.status) == ("marking", "stopped")


def test_an_agent_that_nothing_can_end_does_not_hold_it_up(tmp_path):
    store, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "agent"
    with started(TOOLS, "--store", store) as process:
        called(process, "hanging", {"path": str(path)})
        wait_until(path.exists, DEADLINE)
        process.stdin.close()
        assert process.wait(DEADLINE) == 0

    async def status():
        async with Supervisor(store) as supervisor:
            [run] = (await supervisor.list()).runs
            return run.status

    assert asyncio.run(status()) == "lost"


def test_lines_that_are_no_messages_are_answered_or_ignored_and_it_goes_on():
    with started(TOOLS) as process:
        for line in ("", "{", "[]", "null", '"x"', '{"jsonrpc": "2.0"}', "\u0000", "x" * 10_000):
            process.stdin.write(line + "\n")
        called(process, "talkative", {"text": "still here"})
        answers = []
        while not any("still here" in json.dumps(answer) for answer in answers):
            answers.append(json.loads(process.stdout.readline()))
        process.stdin.close()
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nobody.has.this",), 3, "nobody"),
        ((TOOLS, "--store", "sqlite:///no/such/folder/runs.db"), 5, "runs.db"),
    ],
)
def test_its_errors_are_on_stderr(arguments, code, message):
    words = [sys.executable, "-m", "stoppable", "mcp", *arguments]
    done = subprocess.run(
        words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert message in done.stderr
