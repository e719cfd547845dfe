"""The line to an agent process: one that does not read holds nobody up, and its death is noticed whoever holds it."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from tests.process_states import is_alive
from tests.waiting import until, wait_until

import stoppable
from stoppable._engine.isolation import host, messages

from .process_tools import agent_of

AGENTS = """
import os, signal, time
import stoppable

def stuck(path):
    open(path, "w").close()
    time.sleep(60)

def size(value):
    return len(value)

def killed_beside_a_command():
    os.system("sleep 1000 & kill -9 $PPID")

def killed_beside_a_fork():
    for number in range(1000):
        yield number
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)

def killed_beside_a_fork_that_talks_on():
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        stoppable.emit("still here")

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


@pytest.fixture(params=["with a pidfd", "without"])
def _with_and_without_pidfd(request, monkeypatch):
    if request.param == "without":
        monkeypatch.setattr(messages, "open_pidfd", lambda pid: None)  # as on another system or an older kernel


async def test_a_worker_that_does_not_read_holds_up_no_ladder(agents, tmp_path):
    """The reason is larger than what a socket takes at once."""

    async def other():
        await asyncio.sleep(3600)

    async with asyncio.timeout(40), stoppable.open_run("both", policy=QUICK):
        frozen = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
        fine = await stoppable.spawn(other)
        await until((tmp_path / "there").exists)
        os.kill(agent_of(_worker(frozen)), signal.SIGSTOP)
        frozen.run.stop("immediate", reason="x" * 5_000_000)
        fine.run.stop("immediate")
        assert (await fine.outcome()).status == "stopped"
        outcome = await frozen.outcome()
        assert (outcome.status, outcome.rung) == ("stopped", "kill")


async def test_a_worker_that_does_not_read_its_start_can_be_killed(agents):
    async with asyncio.timeout(40):
        handle = await stoppable.spawn(agents.size, bytes(5_000_000), isolation="process")
        worker = await until(lambda: next(iter(host.live), None))
        os.kill(worker._reaped.reaper.pid, signal.SIGSTOP)
        await until(lambda: handle.run.members)
        await handle.stop("kill")
        assert (await handle.outcome()).status == "stopped"


async def test_what_is_told_while_a_worker_is_frozen_arrives_in_order(agents, tmp_path):
    handle = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    pid = agent_of(_worker(handle))
    os.kill(pid, signal.SIGSTOP)
    for mode in ("cooperative", "graceful", "immediate"):
        handle.run.stop(mode, reason=f"{mode} " + "x" * 500_000)
    os.kill(pid, signal.SIGCONT)
    await until(lambda: all(stop.acknowledged_at for stop in handle.run.stops()))
    times = [stop.acknowledged_at for stop in handle.run.stops()]
    assert times == sorted(times)
    assert handle.status == "stopping"  # the worker answered, nobody killed it
    await handle.stop("kill")
    await handle.outcome()


async def test_a_reason_that_is_too_large_to_be_sent_holds_up_no_later_stop(agents, tmp_path, caplog):
    handle = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
    await until((tmp_path / "there").exists)
    handle.run.stop("cooperative", reason="x" * messages.LIMIT)
    handle.run.stop("graceful")
    unsent, sent = handle.run.stops()
    await until(lambda: sent.acknowledged_at)
    assert unsent.acknowledged_at is None
    assert "a stop could not be sent" in caplog.text
    await handle.stop("kill")
    await handle.outcome()


async def test_a_worker_that_floods_its_parent_holds_up_no_ladder(agents, tmp_path):
    async with asyncio.timeout(40):
        handle = await stoppable.spawn(agents.floods, str(tmp_path / "there"), isolation="process")
        await until((tmp_path / "there").exists)
        await handle.stop("kill")
        assert (await handle.outcome()).status == "stopped"


@pytest.mark.usefixtures("_with_and_without_pidfd")
async def test_a_worker_that_dies_beside_a_command_it_started_is_failed(agents):
    """The command lives on, and would hold the line if it had inherited it."""
    async with asyncio.timeout(40):
        handle = await stoppable.spawn(agents.killed_beside_a_command, isolation="process")
        worker = await until(lambda: next(iter(host.live), None))
        outcome = await handle.outcome()
    assert (outcome.status, "SIGKILL" in str(outcome.error)) == ("failed", True)
    assert worker._reaped.members.pids() == []


@pytest.mark.usefixtures("_with_and_without_pidfd")
async def test_a_worker_that_dies_beside_its_own_fork_is_failed_and_what_it_had_sent_is_kept(agents):
    received = []
    async with asyncio.timeout(40):
        handle = await stoppable.spawn(agents.killed_beside_a_fork, isolation="process")
        worker = await until(lambda: next(iter(host.live), None))
        with pytest.raises(stoppable.RunFailed, match="SIGKILL"):
            async for number in handle.stream():
                received.append(number)
    assert received == list(range(1000))
    assert worker._reaped.members.pids() == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="without a pidfd the run ends with the talking")
async def test_a_fork_that_talks_on_does_not_keep_the_run_of_a_dead_worker(agents):
    async with asyncio.timeout(40):
        handle = await stoppable.spawn(agents.killed_beside_a_fork_that_talks_on, isolation="process")
        outcome = await handle.outcome()
    assert (outcome.status, "SIGKILL" in str(outcome.error)) == ("failed", True)


def test_a_worker_dies_with_its_parent_though_a_fork_of_that_lives_on(tmp_path):
    """The fork has a copy of the parent's end of the line."""
    (tmp_path / "line_agents.py").write_text(AGENTS)
    source = f"""
        import asyncio, os, sys, time
        sys.path.insert(0, {str(tmp_path)!r})
        import stoppable, line_agents
        async def main():
            handle = await stoppable.spawn(line_agents.stuck, {str(tmp_path / "there")!r}, isolation="process")
            while not os.path.exists({str(tmp_path / "there")!r}):
                await asyncio.sleep(0.001)
            fork = os.fork()
            if fork:
                worker = next(member for member in handle.run.members if hasattr(member, "_reaped"))
                print(worker._reaped.reaper.pid, fork, flush=True)
            time.sleep(60)
        asyncio.run(main())
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        worker, fork = map(int, parent.stdout.readline().split())
        parent.kill()
        parent.wait(60)
        try:
            wait_until(lambda: not is_alive(worker))
            assert is_alive(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def _worker(handle):
    return next(member for member in handle.run.members if hasattr(member, "_reaped"))
