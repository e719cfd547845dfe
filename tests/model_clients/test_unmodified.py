"""Unmodified agents stop at their model calls, whatever the client: none begins after the stop, the text is kept."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import sys
import threading

import pytest
from tests.providers import TEXT, Providers
from tests.waiting import until

import stoppable

from . import unmodified_agents as agents

# Other people's code, on the newest Pythons.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")


def cases_of(*clients):
    return [
        pytest.param(make, is_async, id=f"{make.__name__}-{'async' if is_async else 'blocking'}")
        for make in clients
        for is_async in (False, True)
        if not (is_async and make in agents.BLOCKING_ONLY) and not (not is_async and make in agents.ASYNC_ONLY)
    ]


CASES = cases_of(*agents.BOTH, *agents.BLOCKING_ONLY, *agents.ASYNC_ONLY)
every_client = pytest.mark.parametrize(("make", "is_async"), CASES)


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()
    if "litellm" in sys.modules:
        sys.modules["litellm"].in_memory_llm_clients_cache.flush_cache()
    gc.collect()  # ordinary agents do not close their clients: here the warnings about that are ignored


@pytest.fixture(scope="module", autouse=True)
def litellms_own_threads():
    """Let the threads begin that litellm keeps for its log: they outlive every test."""
    if importlib.util.find_spec("litellm") is None:  # other versions of openai are tested without it
        return
    thread_pool = importlib.import_module("litellm.litellm_core_utils.thread_pool_executor").executor
    all_there = threading.Barrier(5)
    calls = [thread_pool.submit(all_there.wait, 60) for _ in range(4)]
    all_there.wait(60)
    for call in calls:
        call.result()


@pytest.fixture
def providers():
    with Providers() as providers:
        yield providers


async def acquire(semaphore):
    await until(lambda: semaphore.acquire(blocking=False))


async def started(agent, providers):
    """Start an agent, and wait until its model call is under way."""
    handle = await stoppable.spawn(agent)
    waiting = asyncio.ensure_future(acquire(providers.streaming))
    ended = asyncio.ensure_future(handle.outcome())
    await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
    assert not ended.done(), ended.result()
    ended.cancel()
    return handle


def check(handle, outcome, make, fates):
    assert outcome.status == "stopped", outcome
    nodes = [node for node in handle.run.receipt.entries if node.kind == "llm"]
    assert [str(node.fate) for node in nodes if str(node.fate) in fates] == [str(node.fate) for node in nodes]
    assert len(nodes) == 1
    assert agents.MODEL.get(make.__name__, "gpt-5") in nodes[0].name


@every_client
async def test_a_call_in_flight_finishes_its_text_is_kept_and_no_other_begins(providers, make, is_async):
    agent = make(providers.url, is_async=is_async, is_stream=False)
    handle = await started(agent, providers)
    await handle.stop()
    providers.released.set()
    outcome = await handle.outcome()
    check(handle, outcome, make, {"finished"})
    assert (len(providers.begun), outcome.rung, outcome.partial) == (1, "signal", TEXT)


@every_client
async def test_a_stream_ends_between_two_chunks_and_is_closed_at_its_source(providers, make, is_async):
    agent = make(providers.url, is_async=is_async, is_stream=True)
    handle = await started(agent, providers)
    await until(lambda: handle.run.partial)
    await handle.stop(grace=0.05)  # the next chunk never comes
    outcome = await handle.outcome()
    check(handle, outcome, make, {"interrupted", "closed", "cancelled"})
    assert len(providers.begun) == 1
    assert TEXT.startswith(outcome.partial)
    await acquire(providers.closed)


@every_client
@pytest.mark.parametrize("mode", ["immediate", "kill"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
async def test_force_ends_a_call_that_hangs(providers, make, is_async, is_stream, mode):
    agent = make(providers.url, is_async=is_async, is_stream=is_stream)
    handle = await started(agent, providers)
    await handle.stop(mode)
    outcome = await handle.outcome()
    check(handle, outcome, make, {"interrupted", "closed", "cancelled", "killed"})
    assert len(providers.begun) == 1
    await acquire(providers.closed)
