"""The line to a worker process: one that does not read holds nobody up."""

import asyncio
import os
import signal

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine import wire, workers

AGENTS = """
import time

def stuck(path):
    open(path, "w").close()
    time.sleep(60)

def size(value):
    return len(value)

def floods(path):
    open(path, "w").close()
    while True:
        yield "x" * 10_000
"""

QUICK = stoppable.Policy(cancel=0.2, kill=10.0)
"""KILL comes soon; LOST would come after every deadline here."""


@pytest.fixture
def agents(importable):
    return importable("line_agents", AGENTS)


async def test_a_worker_that_does_not_read_holds_up_no_ladder(agents, tmp_path):
    """The reason is larger than what a socket takes at once."""

    async def other():
        await asyncio.sleep(3600)

    async with asyncio.timeout(15), stoppable.open_run("both", policy=QUICK):
        frozen = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
        fine = await stoppable.spawn(other)
        await until((tmp_path / "there").exists)
        os.kill(_worker(frozen)._process.pid, signal.SIGSTOP)
        frozen.run.stop("immediate", reason="x" * 5_000_000)
        fine.run.stop("immediate")
        assert (await fine.outcome()).status == "stopped"
        outcome = await frozen.outcome()
        assert (outcome.status, outcome.rung) == ("stopped", "kill")


async def test_a_worker_that_does_not_read_its_start_can_be_killed(agents):
    async with asyncio.timeout(15):
        handle = await stoppable.spawn(agents.size, bytes(5_000_000), isolation="process")
        worker = await until(lambda: next(iter(workers.live), None))
        os.kill(worker._process.pid, signal.SIGSTOP)
        await until(lambda: handle.run._members)
        await handle.stop("kill")
        assert (await handle.outcome()).status == "stopped"


async def test_what_is_told_while_a_worker_is_frozen_arrives_in_order(agents, tmp_path):
    handle = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    pid = _worker(handle)._process.pid
    os.kill(pid, signal.SIGSTOP)
    for mode in ("cooperative", "graceful", "immediate"):
        handle.run.stop(mode, reason=f"{mode} " + "x" * 500_000)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: all(stop.acknowledged_at for stop in handle.run._stops()))
    times = [stop.acknowledged_at for stop in handle.run._stops()]
    assert times == sorted(times)
    assert handle.status == "stopping"  # the worker answered, nobody killed it
    await handle.stop("kill")
    await handle.outcome()


async def test_a_reason_that_is_too_large_to_be_sent_holds_up_no_later_stop(agents, tmp_path, caplog):
    handle = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    handle.run.stop("cooperative", reason="x" * wire.LIMIT)
    handle.run.stop("graceful")
    unsent, sent = handle.run._stops()
    await until(lambda: sent.acknowledged_at)
    assert unsent.acknowledged_at is None
    assert "could not be told of a stop" in caplog.text
    await handle.stop("kill")
    await handle.outcome()


async def test_a_worker_that_floods_its_parent_holds_up_no_ladder(agents, tmp_path):
    async with asyncio.timeout(15):
        handle = await stoppable.spawn(agents.floods, str(tmp_path / "there"), isolation="process")
        await until((tmp_path / "there").exists)
        await handle.stop("kill")
        assert (await handle.outcome()).status == "stopped"


def _worker(handle):
    return next(member for member in handle.run._members if hasattr(member, "_process"))
