"""What ``supervise`` is given holds for every run, with a supervisor and without one."""

import asyncio
import threading

import pytest

import stoppable
from stoppable.adapters.openhands import run_of, supervise

from .world import DEADLINE, asks, converse, hold, says, status


async def run_async(conversation):
    await conversation.arun()


async def run_sync(conversation):
    thread = threading.Thread(target=conversation.run)
    thread.start()
    while thread.is_alive():
        await asyncio.sleep(0.01)


WAYS = pytest.mark.parametrize("run", [run_async, run_sync])


@pytest.fixture(params=["no supervisor", "supervisor"])
async def supervisor(request):
    if request.param == "no supervisor":
        yield None
        return
    async with stoppable.Supervisor() as opened:
        yield opened


@WAYS
async def test_the_limit_of_seconds_holds(world, tmp_path, supervisor, run):
    script = [asks(hold("a", obeys=True)), says("done")]
    conversation = supervise(converse(tmp_path, *script), supervisor, limits=stoppable.Limits(seconds=0.2))
    async with asyncio.timeout(DEADLINE):
        await run(conversation)
    ended = run_of(conversation)
    assert ended.outcome.status == "stopped"
    assert ended.outcome.reason.kind == "limit"
    assert status(conversation) == "paused"
    assert "finish a" not in world.notes
    conversation.close()


@WAYS
async def test_the_limit_of_model_calls_holds(world, tmp_path, supervisor, run):
    script = [asks(hold("a")), asks(hold("b")), says("done")]
    world.release("a", "b")
    conversation = supervise(converse(tmp_path, *script), supervisor, limits=stoppable.Limits(boundaries={"llm": 1}))
    await run(conversation)
    assert run_of(conversation).outcome.status == "stopped"
    assert run_of(conversation).outcome.reason.kind == "limit"
    assert world.notes.count("model") == 1
    assert status(conversation) == "paused"
    conversation.close()


@WAYS
async def test_the_owner_and_the_labels_are_those_of_the_run(world, tmp_path, supervisor, run):
    conversation = supervise(converse(tmp_path, says("done")), supervisor, owner="ann", labels={"team": "red"})
    await run(conversation)
    ended = run_of(conversation)
    assert ended.owner == "ann"
    assert dict(ended.labels) == {"conversation": str(conversation.id), "team": "red"}
    assert ended.outcome.status == "completed"
    conversation.close()
