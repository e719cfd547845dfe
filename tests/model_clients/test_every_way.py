"""Unmodified agents stop alike however they are started: in an agent process, by ``stoppable run``, by a server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.grpc_model import GrpcModel
from tests.providers import TEXT, Providers
from tests.served import Server
from tests.waiting import until, wait_until

import stoppable
from stoppable.client import Client

from . import unmodified_agents as agents
from .test_unmodified import CASES, acquire, cases_of, check

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
every_client = pytest.mark.parametrize(("make", "is_async"), [*CASES, *cases_of(agents.grpc)])
streamed_or_not = pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
ROOT = Path(__file__).parents[2]
SECONDS = 120  # imports take long on a busy machine


@pytest.fixture
def providers(make):
    with GrpcModel() if make is agents.grpc else Providers() as providers:
        yield providers


def text_of(make):
    """Return the whole text of an answer; the messages of gRPC are objects, which are not read."""
    return None if make is agents.grpc else TEXT


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
    nodes = [node for node in record.receipt.entries if node.kind == "llm"]
    assert record.status == "stopped", record
    fates = (["closed"], ["finished"]) if is_stream else (["finished"],)  # all of a stream may be there already
    assert [str(node.fate) for node in nodes] in fates
    assert agents.MODEL.get(make.__name__, "gpt-5") in nodes[0].name
    assert len(providers.begun) == 1
    check_partial(record.outcome, make, is_stream=is_stream)


def check_partial(outcome, make, *, is_stream):
    """Check the text that was kept: that of a stream as far as its client had read it, which may be not at all."""
    text = text_of(make)
    assert outcome.partial == text or (is_stream and (text or "").startswith(outcome.partial or ""))


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
    check_partial(outcome, make, is_stream=is_stream)


@every_client
@streamed_or_not
async def test_in_an_agent_process_force_ends_a_call_that_hangs(providers, make, is_async, is_stream):
    stoppable.instrument()
    agent = agents.AGENTS[entry(is_async)]
    handle = await stoppable.spawn(agent, make.__name__, providers.url, is_stream, isolation="process")
    await until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    await handle.stop("immediate")
    check(handle, await handle.outcome(), make, {"interrupted", "closed", "cancelled"})
    assert len(providers.begun) == 1
    await acquire(providers.closed)


@every_client
@streamed_or_not
async def test_kill_ends_the_agent_process_with_its_call(providers, make, is_async, is_stream):
    stoppable.instrument()
    agent = agents.AGENTS[entry(is_async)]
    handle = await stoppable.spawn(agent, make.__name__, providers.url, is_stream, isolation="process")
    await until(lambda: providers.streaming.acquire(blocking=False), SECONDS)
    await handle.stop("kill")
    # The rungs before KILL have no time of their own, but one of them may be quicker.
    check(handle, await handle.outcome(), make, {"killed", "interrupted", "closed", "cancelled"})
    assert len(providers.begun) == 1
    await acquire(providers.closed)


# By `stoppable run`, with Ctrl-C


@contextlib.contextmanager
def in_terminal(providers, make, *, is_async, is_stream):
    """Start an agent in a terminal, and wait until its model call is under way."""
    given = {"client": make.__name__, "url": providers.url, "is_stream": is_stream}
    process = program("run", f"{agents.__name__}:{entry(is_async)}", json.dumps(given))
    terminal = Server(process)
    try:
        wait_until(lambda: providers.streaming.acquire(blocking=False) or process.poll() is not None, SECONDS)
        yield terminal
    finally:
        process.kill()
        process.wait(SECONDS)
        terminal.close()
        process.stdout.close()


@every_client
@streamed_or_not
def test_ctrl_c_in_the_terminal_lets_no_other_call_begin(providers, make, is_async, is_stream):
    with in_terminal(providers, make, is_async=is_async, is_stream=is_stream) as terminal:
        terminal.process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful)")
        providers.released.set()
        assert terminal.process.wait(SECONDS) == 130
        said = terminal.said()
    assert "stopped" in said, said
    fate = "(closed|finished)" if is_stream else "finished"
    assert re.search(rf"llm .*{re.escape(agents.MODEL.get(make.__name__, 'gpt-5'))}.* {fate}\n", said), said
    assert is_stream or (text_of(make) or "").strip() in said, said
    assert len(providers.begun) == 1


@every_client
@streamed_or_not
@pytest.mark.parametrize("presses", [2, 3])
def test_ctrl_c_again_in_the_terminal_ends_a_call_that_hangs(providers, make, is_async, is_stream, presses):
    with in_terminal(providers, make, is_async=is_async, is_stream=is_stream) as terminal:
        terminal.process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful)")
        for _ in range(presses - 1):
            terminal.process.send_signal(signal.SIGINT)
        # The run may be over before the last one, which then ends the program: a shell says 130 of both.
        assert terminal.process.wait(SECONDS) in ({130, -signal.SIGINT} if presses == 3 else {130})
        said = terminal.said()
    assert "stopped" in said, said
    fates = "interrupted|cancelled|closed|killed" if presses == 3 else "interrupted|cancelled|closed"
    assert re.search(rf"llm .* ({fates})\n", said), said
    assert "abandoned" not in said, said
    assert len(providers.begun) == 1
    wait_until(lambda: providers.closed.acquire(blocking=False), SECONDS)


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
@streamed_or_not
@pytest.mark.parametrize("mode", ["immediate", "kill"])
def test_force_over_http_ends_a_call_that_hangs(client, providers, make, is_async, is_stream, mode):
    run = start(client, providers, make, is_async=is_async, is_stream=is_stream)
    client.stop(run.id, mode=mode, wait=SECONDS)
    assert client.get(run.id).status == "stopped"
    assert len(providers.begun) == 1
    wait_until(lambda: providers.closed.acquire(blocking=False), SECONDS)
