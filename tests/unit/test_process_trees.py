"""A stop reaches all the processes of a run, and nobody else's (G13)."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest
from tests.process_states import is_alive, state
from tests.waiting import until

import stoppable
from stoppable import Policy
from stoppable._core.values import new_id
from stoppable._engine.processes import table
from stoppable._engine.processes.command import Command
from stoppable._engine.processes.group import GroupThread, ProcessGroup, live
from stoppable._engine.processes.pipes import Pipes
from stoppable._engine.processes.process import open_process, run_process, run_process_sync

from .process_tools import STUBBORN, Flags, bearers, nothing_left

_nothing_left = pytest.fixture(autouse=True)(nothing_left)


@pytest.fixture
def flags(tmp_path):
    return Flags(tmp_path)


DOUBLE_FORK = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("escaped", flush=True)
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


async def start(agent, policy=None):
    """Start a root run with a policy."""

    async def body():
        stoppable.current_run().policy = policy or Policy()
        return await agent()

    return await stoppable.spawn(body)


# Trees


TREE = f"""
    sleep 1000 &
    (sh -c 'sleep 1000 & wait' &)
    setsid setsid sleep 1000 &
    setsid setsid sh -c "{STUBBORN}" &
    set -m; sleep 1000 & set +m
    (exec 3<&0; {sys.executable} -c '{DOUBLE_FORK}') &
    {STUBBORN}
"""


@pytest.mark.parametrize("mode", ["kill", "immediate", "graceful"])
async def test_nothing_of_a_tree_is_left_whatever_it_does(mode):
    """Children, grandchildren, another process group, two ways to leave the session, and two that ignore TERM."""

    async def agent():
        async with await open_process(TREE, shell=True, stderr=subprocess.DEVNULL) as process:
            assert await process.stdout.readline() == "escaped\n"
            await process.wait()

    handle = await start(agent, Policy(grace=0.05, interrupt=0.05, cancel=0.2, kill=5))
    await until(lambda: len(bearers(handle.id)) >= 9)  # besides the short sleeps of the stubborn ones
    await handle.stop(mode)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "kill")
    assert not bearers(handle.id)


async def test_one_that_forks_and_escapes_all_the_time_is_killed():
    async def agent():
        await run_process("for n in $(seq 500); do setsid sleep 1000 & done; sleep 1000", shell=True)

    handle = await start(agent, Policy(kill=10))
    await until(lambda: len(bearers(handle.id)) > 20)
    await handle.stop("kill")
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    assert not bearers(handle.id)


async def test_one_that_never_has_the_same_pid_twice_is_killed():
    """It forks, leaves the session and ends, over and over, and is never where it was seen last."""
    code = """
import os, time
end = time.monotonic() + 15
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""

    async def agent():
        async with await open_process([sys.executable, "-S", "-E", "-c", code]) as process:
            await process.wait()
            ready.set()
            await asyncio.sleep(60)

    ready = asyncio.Event()
    handle = await start(agent, Policy(kill=8))
    await ready.wait()
    await handle.stop("kill")
    assert (await handle.outcome()).status == "stopped"
    assert not bearers(handle.id)


async def test_a_tree_of_fifty_dies_at_once():
    async def agent():
        await run_process("for i in $(seq 49); do sleep 1000 & done; sleep 1000", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(bearers(handle.id)) >= 50)
    await handle.stop("immediate")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "cancel")
    assert not bearers(handle.id)


async def test_a_stop_reaches_the_processes_of_child_runs():
    async def child():
        await run_process(["sleep", "1000"])

    async def parent():
        handles = [await stoppable.spawn(child) for _ in range(3)]
        children.extend(handle.id for handle in handles)
        for handle in handles:
            await handle.outcome()

    children = []
    handle = await stoppable.spawn(parent)
    await until(lambda: len(children) == 3 and all(bearers(child) for child in children))
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not any(bearers(child) for child in children)


# Nobody else's (G13)


async def test_a_stop_leaves_the_processes_of_other_runs_alone():
    async def agent():
        async with await open_process(["cat"]) as process:
            await process.stdin.write("alive\n")
            await process.stdout.readline()
            ready.append(process)
            await asyncio.sleep(60)

    ready = []
    handles = [await stoppable.spawn(agent) for _ in range(3)]
    await until(lambda: len(ready) == 3)
    await handles[1].stop("kill")
    assert (await handles[1].outcome()).status == "stopped"
    assert sorted(not is_alive(process.pid) for process in ready) == [False, False, True]
    for handle in handles:
        await handle.stop("kill")
        await handle.outcome()


async def test_a_process_that_ends_leaves_the_others_of_its_run_alone():
    """Both bear the cookie of the run; only what bears that of its group goes with it."""

    async def agent():
        async with await open_process("setsid cat; wait", shell=True) as server:
            await run_process("setsid sleep 1000 &", shell=True)
            await server.stdin.write("alive\n")
            return await server.stdout.readline()

    assert await (await stoppable.spawn(agent)).result() == "alive\n"


@contextmanager
def child(*command, **options):
    """Run a process of the test's own, which nothing but the test ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def test_only_members_are_signalled():
    """A pid whose process has ended, strangers, one with the id in another variable, and one with a longer id."""
    group_id = new_id()
    members = table.Members(group_id, session=2**22)
    with child("true") as finished:
        finished.wait(60)
        members.signal(finished.pid, signal.SIGKILL)
    for env in ({"OTHER": group_id}, {"STOPPABLE_GROUPS": f"x{group_id}"}, {}):
        with child("cat", env=env) as stranger:
            assert stranger.pid not in members.pids()
            members.signal(stranger.pid, signal.SIGKILL)
            assert stranger.communicate(b"alive", timeout=30)[0] == b"alive"
            assert stranger.returncode == 0


@pytest.mark.parametrize("missing", [None, "pidfd_open"])
def test_members_are_found_by_session_or_cookie_and_signalled(monkeypatch, missing):
    if missing is not None:
        monkeypatch.delattr(os, missing)
    group_id = new_id()
    members = table.Members(group_id)
    with (
        child("cat", env={"STOPPABLE_GROUPS": f"outer:{group_id}:inner"}) as bearer,
        child("cat", env={}, start_new_session=True) as leader,
    ):
        members.session = leader.pid
        assert sorted(members.pids()) == sorted([bearer.pid, leader.pid])
        members.signal(bearer.pid, signal.SIGTERM)
        assert bearer.wait(60) == -signal.SIGTERM
        members.signal(leader.pid, signal.SIGTERM)
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        assert members.pids() == []  # a zombie is dead


def test_whoever_has_the_session_of_a_leader_that_was_reaped_is_a_stranger():
    with child("cat", env={}, start_new_session=True) as stranger:
        members = table.Members(new_id(), session=stranger.pid)
        members.session = None
        assert members.pids() == []
        members.signal(stranger.pid, signal.SIGKILL)
        assert stranger.communicate(b"alive", timeout=30)[0] == b"alive"


async def test_the_leader_is_reaped_after_everything_else(flags):
    """While a member lives, the leader stays a zombie: its pid, and the group's id, cannot be given to anybody else."""
    async with await open_process(f"({flags.wait('go')}; echo late) & exit 0", shell=True) as process:
        assert await process.wait() == 0
        assert state(process.pid) == "Z"
        flags.raise_("go")
        await until(lambda: state(process.pid) is None)


# What cannot be ended


def _immortal(monkeypatch):
    """Let every search find one more process, until the list that this returns is cleared."""
    immortal, each = [2**22 + 1], table.Members.each

    def find(members):
        members.is_gone = False
        yield from immortal or each(members)

    monkeypatch.setattr(table.Members, "each", find)
    return immortal


async def test_a_process_that_survives_kill_makes_the_run_lost_and_is_named(monkeypatch, clock):
    """A fake: the table goes on listing a process, as it does for one that hangs in the kernel."""
    immortal = _immortal(monkeypatch)

    async def agent():
        await run_process("echo so far; sleep 1000", shell=True)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.run.participants() and live)
    group = next(iter(live))
    await until(lambda: group.pid is not None and group._captured.value())
    await handle.stop("kill")
    await until(lambda: group.returncode is not None)
    await until(lambda: handle.run.partial is not None)
    clock.advance(2)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("lost", "lost")
    assert outcome.partial == "so far\n"
    assert f"process group {group.pid} (echo)" in [node.name for node in handle.run.receipt.entries]
    immortal.clear()
    await until(lambda: not live)


async def test_nobody_waits_for_ever_for_a_process_that_survives_kill(monkeypatch, clock):
    immortal = _immortal(monkeypatch)
    task = asyncio.create_task(run_process("echo done", shell=True))
    await until(lambda: live and next(iter(live)).returncode is not None)
    await until(lambda: next(iter(live))._timers)  # TERM was sent, and the KILL after it is set
    clock.advance(5)
    clock.advance(2)
    assert (await task).stdout == "done\n"
    immortal.clear()
    await until(lambda: not live)


async def test_a_leader_that_survives_kill_has_no_code(monkeypatch, clock):
    """A fake: neither KILL nor anything else reaches the group."""
    monkeypatch.setattr(os, "killpg", lambda _pid, _signum: None)
    monkeypatch.setattr(table.Members, "signal", lambda _self, _pid, _signum: None)
    process = await open_process(["sleep", "1000"])
    closing = asyncio.create_task(process.aclose())
    await until(lambda: next(iter(live))._timers)  # TERM was sent, and the KILL after it is set
    clock.advance(5)
    clock.advance(2)
    await closing
    with pytest.raises(stoppable.StoppableError, match="was killed but is still alive"):
        await process.wait()
    monkeypatch.undo()
    await until(lambda: not live)


async def test_a_thread_that_cannot_be_started_leaves_nothing(monkeypatch):
    def refuse(_self):
        raise RuntimeError("can't start new thread")

    async def agent():
        monkeypatch.setattr(threading.Thread, "start", refuse)
        try:
            with pytest.raises(RuntimeError, match="new thread"):
                await run_process(["true"])
        finally:
            monkeypatch.undo()
        return stoppable.current_run().stop("cooperative").in_flight

    assert (await (await stoppable.spawn(agent)).outcome()).result == ()
    assert not live


@pytest.mark.parametrize("pause", [0, 0.05])
async def test_a_ctrl_c_while_the_keeper_starts_leaves_nothing(monkeypatch, pause):
    """It comes when the thread was made, and perhaps has begun, but before the caller knows."""
    start_thread = threading.Thread.start

    def interrupted(thread):
        start_thread(thread)
        if thread.name.startswith("stoppable-process"):
            thread.join(pause)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_process_sync(["sleep", "1000"])
    await until(lambda: not live)


async def test_a_thread_that_comes_too_late_starts_nothing(flags):
    group = ProcessGroup(Command.of(flags.up("started"), shell=True), ends_with_leader=True)
    assert group.claim()
    GroupThread(group, Pipes(stdin=None, stdout=None, stderr=None), {}).manage()
    assert not flags.is_up("started")
