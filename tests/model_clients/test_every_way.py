"""Unmodified agents stop alike however they are started: in an agent process, by ``stoppable run``, by a server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.providers import TEXT, Providers
from tests.served import Server
from tests.waiting import until, wait_until

import stoppable
from stoppable.client import Client

from . import unmodified_agents as agents
from .test_unmodified import CASES, acquire, check

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
every_client = pytest.mark.parametrize(("make", "is_async"), CASES)
streamed_or_not = pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
ROOT = Path(__file__).parents[2]
SECONDS = 60  # imports take long on a busy machine


@pytest.fixture
def providers():
    with Providers() as providers:
        yield providers


def entry(is_async):
    return "awaited" if is_async else "blocking"


def program(*arguments):
    """Start ``stoppable`` as a user does."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOPPABLE")}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "stoppable", *arguments],
        cwd=ROOT,
        env={**environment, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check_end(record, providers, make, *, is_stream):
    """Check what a stopped run kept, and that no other call was begun."""
    nodes = [node for node in record.receipt.nodes if node.kind == "llm"]
    assert record.status == "stopped", record
    fates = (["closed"], ["finished"]) if is_stream else (["finished"],)  # all of a stream may be there already
    assert [str(node.fate) for node in nodes] in fates
    assert agents.MODEL.get(make.__name__, "gpt-5") in nodes[0].name
    assert len(providers.begun) == 1
    check_partial(record.outcome, is_stream=is_stream)


def check_partial(outcome, *, is_stream):
    """Check the text that was kept: that of a stream as far as its client had read it, which may be not at all."""
    assert TEXT.startswith(outcome.partial or "") if is_stream else outcome.partial == TEXT


# In an agent process


@every_client
@streamed_or_not
async def test_in_an_agent_process_a_graceful_stop_lets_no_other_call_begin(providers, make, is_async, is_stream):
    stoppable.instrument()
    agent = agents.AGENTS[entry(is_async)]
    handle = await stoppable.spawn(agent, make.__name__, providers.url, is_stream, isolation="process")
    await until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    await handle.stop()
    providers.released.set()
    outcome = await handle.outcome()
    check(handle, outcome, make, {"finished", "closed"})
    assert len(providers.begun) == 1
    check_partial(outcome, is_stream=is_stream)


@every_client
async def test_in_an_agent_process_force_ends_a_call_that_hangs(providers, make, is_async):
    stoppable.instrument()
    agent = agents.AGENTS[entry(is_async)]
    handle = await stoppable.spawn(agent, make.__name__, providers.url, True, isolation="process")
    await until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    await handle.stop("immediate")
    check(handle, await handle.outcome(), make, {"interrupted", "closed", "cancelled"})
    assert len(providers.begun) == 1
    await acquire(providers.closed)


async def test_kill_ends_the_agent_process_with_its_call(providers):
    stoppable.instrument()
    handle = await stoppable.spawn(agents.blocking, "openai_chat", providers.url, True, isolation="process")
    await until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    await handle.stop("kill")
    check(handle, await handle.outcome(), agents.openai_chat, {"killed"})
    await acquire(providers.closed)


# By `stoppable run`, with Ctrl-C


@every_client
@streamed_or_not
def test_ctrl_c_in_the_terminal_lets_no_other_call_begin(providers, make, is_async, is_stream):
    given = {"client": make.__name__, "url": providers.url, "is_stream": is_stream}
    process = program("run", f"{agents.__name__}:{entry(is_async)}", json.dumps(given))
    terminal = Server(process)
    try:
        wait_until(lambda: providers.streaming.acquire(blocking=False) or process.poll() is not None, SECONDS)
        process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful)")
        providers.released.set()
        assert process.wait(SECONDS) == 130
        said = terminal.said()
    finally:
        process.kill()
        process.wait(SECONDS)
        terminal.close()
        process.stdout.close()
    assert "stopped" in said, said
    fate = "(closed|finished)" if is_stream else "finished"
    assert re.search(rf"llm .*{re.escape(agents.MODEL.get(make.__name__, 'gpt-5'))}.* {fate}\n", said), said
    assert is_stream or TEXT.strip() in said, said
    assert len(providers.begun) == 1


# By a server


@pytest.fixture(scope="module")
def client():
    process = program("serve", f"{agents.__name__}:AGENTS", "--port", "0", "--store", "memory:")
    server = Server(process)
    try:
        with Client(server.url()) as client:
            yield client
    finally:
        process.kill()
        process.wait(SECONDS)
        server.close()
        process.stdout.close()


def start(client, providers, make, *, is_async, is_stream):
    """Start an agent, and wait until its model call is under way."""
    given = {"client": make.__name__, "url": providers.url, "is_stream": is_stream}
    run = client.start(entry(is_async), given)
    wait_until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    return run


@every_client
@streamed_or_not
def test_a_stop_over_http_lets_no_other_call_begin(client, providers, make, is_async, is_stream):
    run = start(client, providers, make, is_async=is_async, is_stream=is_stream)
    client.stop(run.id)
    providers.released.set()
    client.stop(run.id, wait=SECONDS)
    check_end(client.get(run.id), providers, make, is_stream=is_stream)


@every_client
@pytest.mark.parametrize("mode", ["immediate", "kill"])
def test_force_over_http_ends_a_call_that_hangs(client, providers, make, is_async, mode):
    run = start(client, providers, make, is_async=is_async, is_stream=True)
    client.stop(run.id, mode=mode, wait=SECONDS)
    assert client.get(run.id).status == "stopped"
    assert len(providers.begun) == 1
    wait_until(lambda: providers.closed.acquire(blocking=False), SECONDS)
