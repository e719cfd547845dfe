"""Every agent of the demo ends as its docstring says."""

import asyncio
import functools

import pytest

import stoppable
from stoppable.demo import AGENTS, demo_model
from stoppable.demo import agents as demo_agents


@pytest.fixture
async def supervisor(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with stoppable.Supervisor() as supervisor:
        yield supervisor


async def seen(supervisor, handle, is_so):
    """Wait until the events of a run show something."""
    async with asyncio.timeout(30):
        async for event in supervisor.events(handle.id):
            if is_so(event):
                return


def partial(event):
    return event.type == "partial"


async def test_research_stops_with_its_searchers_in_the_middle_of_their_answers(supervisor):
    with demo_model(words_per_second=20):
        handle = await supervisor.start(AGENTS["research"])
        await seen(supervisor, handle, lambda event: event.type == "progress")
        async with asyncio.timeout(30):
            while len(await supervisor.tree(handle.id)) < 3 or not handle.run.in_flight:
                await asyncio.sleep(0.01)
        receipt = await supervisor.stop(handle.id, reason="enough", wait=30)
    assert receipt.status == "stopped"
    assert receipt.entered_after == ()
    assert {record.status for record in await supervisor.tree(handle.id)} <= {"stopped", "completed"}
    assert (await handle.outcome()).partial.startswith("A stop is one signal")


async def test_research_left_alone_completes(supervisor):
    with demo_model(words_per_second=5000):
        handle = await supervisor.start(functools.partial(AGENTS["research"], topic="x"))
        assert (await handle.result()).endswith("could not be ended.")
    assert [record.name for record in await supervisor.tree(handle.id)] == [
        "research",
        "searcher",
        "searcher",
        "writer",
    ]


async def test_a_tool_in_a_thread_leaves_its_loop(supervisor):
    handle = await supervisor.start(AGENTS["thread_tool"])
    await seen(supervisor, handle, partial)
    receipt = await supervisor.stop(handle.id, wait=30)
    assert (receipt.status, receipt.in_flight) == ("stopped", ("tool:crunch",))
    assert (await handle.outcome()).rung == "signal"


async def test_a_tree_of_processes_dies(supervisor):
    handle = await supervisor.start(AGENTS["process_tree"])
    await seen(supervisor, handle, lambda event: event.type == "entered")
    receipt = await supervisor.stop(handle.id, "kill", wait=30)
    assert receipt.status == "stopped"


async def test_swallowing_buys_no_further_effect(supervisor):
    handle = await supervisor.start(AGENTS["stubborn"])
    await seen(supervisor, handle, partial)
    receipt = await supervisor.stop(handle.id, wait=30)
    assert (receipt.status, receipt.entered_after) == ("stopped", ())
    outcome = await handle.outcome()
    assert outcome.result == "gave up after swallowing 20"


async def test_a_blocked_thread_is_lost_and_named(supervisor):
    handle = await supervisor.start(
        functools.partial(AGENTS["blocked_thread"], seconds=4), policy=stoppable.Policy(kill=0.1)
    )
    await seen(supervisor, handle, lambda event: event.type == "entered")
    receipt = await supervisor.stop(handle.id, "kill", wait=30)
    assert receipt.status == "lost"
    assert any("agents.py" in node.name for node in receipt.entries)


def test_a_key_alone_spends_no_money(monkeypatch):
    for name in ("OPENAI_BASE_URL", "OPENAI_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert demo_agents.is_scripted()
    assert "Authorization" not in demo_agents._headers()


def test_a_real_model_is_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_MODEL", "gpt")
    with demo_model() as url:
        assert url == "https://api.openai.com/v1"
    connection, path = demo_agents._connect(url)
    assert (connection.host, connection.port, path) == ("api.openai.com", 443, "/v1/chat/completions")
    assert demo_agents._headers()["Authorization"] == "Bearer secret"
    assert demo_agents._body("hi")["model"] == "gpt"


async def test_an_error_of_the_model_is_the_error_of_the_run(supervisor, monkeypatch):
    from stoppable.testing import Failure, ModelServer

    with ModelServer(default=Failure(429, "too many")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        handle = await supervisor.start(functools.partial(AGENTS["searcher"], question="why"))
        outcome = await handle.outcome()
    assert outcome.status == "failed"
    assert "429" in str(outcome.error)
