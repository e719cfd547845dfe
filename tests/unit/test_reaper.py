"""An agent process ends with everything that it started, however that hid (G8)."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.process_states import is_alive
from tests.waiting import until, wait_until

import stoppable
from stoppable._engine.processes import table

from .process_tools import agent_of

AGENTS = """
import os, signal, subprocess, sys, time
from pathlib import Path
import stoppable

def tell(path, pid):
    Path(str(path) + ".new").write_text(str(pid))
    os.rename(str(path) + ".new", path)

def hides(path, seconds=60):
    '''A command in a new session, without the environment that would show whose it is.'''
    os.environ.clear()
    os.environ["PATH"] = "/usr/bin:/bin"
    tell(path, subprocess.Popen(["sleep", "60"], start_new_session=True).pid)
    time.sleep(seconds)

def leaves_a_daemon(path, seconds=60):
    '''One that has no parent either.'''
    if os.fork() == 0:
        os.setsid()
        os.closerange(3, 256)
        if os.fork() == 0:
            tell(path, os.getpid())
            os.execve("/bin/sleep", ["sleep", "60"], {})
        os._exit(0)
    os.wait()
    while not os.path.exists(path):  # otherwise it may be ended before it has begun
        time.sleep(0.001)
    time.sleep(seconds)

def starts_a_chain(path, seconds=60):
    '''Each process starts its successor, in a new session, and ends.'''
    script = '[ "$N" = 0 ] && exit; echo $$ >> "$F"; env -i F="$F" S="$S" N=$((N-1)) setsid sh -c "$S" & exit 0'
    subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin", "F": path, "S": script, "N": "3000"})
    time.sleep(seconds)

def reads_an_exit_code():
    codes = []
    for _ in range(20):
        subprocess.run(["sh", "-c", "setsid true & exit 0"], check=True)  # an orphan that ends
        process = subprocess.Popen(["sh", "-c", "setsid true & exit 7"])
        codes.append(process.wait() if len(codes) % 2 else os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]))
    return codes

def leaves_orphans_that_end(path):
    for _ in range(20):
        subprocess.run(["sh", "-c", "setsid true &"], check=True)
    Path(path).touch()
    time.sleep(60)

def notes_a_signal(path):
    signal.signal(signal.SIGUSR1, lambda *_: Path(path + ".signal").touch())
    Path(path).touch()
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def agents(importable):
    return importable("reaped_agents", AGENTS)


@pytest.fixture
def there(tmp_path):
    return tmp_path / "there"


def worker_of(handle):
    return next(member for member in handle.run.members if hasattr(member, "_reaped"))


HIDING = ["hides", "leaves_a_daemon"]


@pytest.mark.parametrize("mode", ["kill", "immediate"])
@pytest.mark.parametrize("name", HIDING)
async def test_a_process_that_hid_is_dead_when_the_run_is_stopped(agents, there, name, mode):
    policy = stoppable.Policy(cancel=0.2, kill=30)
    handle = await stoppable.spawn(getattr(agents, name), str(there), isolation="process", policy=policy)
    await until(there.exists, 60)
    pid = int(there.read_text())
    since = table.start_time(pid)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    assert not table.is_running(pid, since)


async def test_a_command_that_hid_is_killed_as_its_receipt_says(agents, there):
    handle = await stoppable.spawn(agents.hides, str(there), isolation="process")
    await until(lambda: there.exists() and handle.run.in_flight, 60)
    await handle.stop("kill")
    await handle.outcome()
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "spawn"] == ["killed"]
    assert not is_alive(int(there.read_text()))


@pytest.mark.parametrize("name", HIDING)
async def test_a_completed_agent_leaves_none_behind_either(agents, there, name):
    handle = await stoppable.spawn(getattr(agents, name), str(there), 0, isolation="process")
    assert (await handle.outcome()).status == "completed"
    assert not is_alive(int(there.read_text()))


async def test_a_chain_of_processes_that_hide_is_ended(agents, there):
    handle = await stoppable.spawn(agents.starts_a_chain, str(there), isolation="process")
    await until(lambda: there.exists() and len(there.read_text().split()) > 20, 60)
    await handle.stop("kill")
    assert (await handle.outcome()).status == "stopped"
    links = there.read_text()
    time.sleep(0.2)  # a link takes a few milliseconds
    assert there.read_text() == links


async def test_the_exit_codes_of_an_agent_are_its_own(agents):
    handle = await stoppable.spawn(agents.reads_an_exit_code, isolation="process")
    assert await handle.result() == [7] * 20


async def test_orphans_that_end_do_not_pile_up(agents, there):
    handle = await stoppable.spawn(agents.leaves_orphans_that_end, str(there), isolation="process")
    await until(there.exists, 60)
    reaper = worker_of(handle)._reaped.reaper.pid
    children = Path(f"/proc/{reaper}/task/{reaper}/children")
    await until(lambda: len(children.read_text().split()) == 1)  # the agent process
    await handle.stop("kill")
    await handle.outcome()


@pytest.mark.parametrize("name", HIDING)
async def test_a_worker_that_is_killed_from_outside_leaves_none_behind(agents, there, name):
    handle = await stoppable.spawn(getattr(agents, name), str(there), isolation="process")
    await until(there.exists, 60)
    os.kill(agent_of(worker_of(handle)), signal.SIGKILL)
    outcome = await handle.outcome()
    assert (outcome.status, "SIGKILL" in str(outcome.error)) == ("failed", True)
    assert not is_alive(int(there.read_text()))


async def test_a_signal_to_the_process_that_was_started_reaches_the_agent(agents, there):
    handle = await stoppable.spawn(agents.notes_a_signal, str(there), isolation="process")
    await until(there.exists, 60)
    os.kill(worker_of(handle)._reaped.reaper.pid, signal.SIGUSR1)
    await until(Path(f"{there}.signal").exists)
    assert handle.status == "running"
    await handle.stop("kill")
    await handle.outcome()


async def test_if_the_reaper_is_killed_the_rest_is_found_by_its_session(agents, there):
    """Nobody is left who could prove it, so the processes are looked for, as those of a command are."""
    handle = await stoppable.spawn(agents.hides, str(there), isolation="process")
    await until(there.exists, 60)
    worker = worker_of(handle)
    inside = subprocess.Popen(["sleep", "60"], env={table.GROUPS: worker._reaped.members._cookie.decode()})
    os.kill(worker._reaped.reaper.pid, signal.SIGKILL)
    assert (await handle.outcome()).status == "failed"
    assert inside.wait(30) == -signal.SIGKILL
    os.kill(int(there.read_text()), signal.SIGKILL)  # this one nobody can find


def test_all_die_with_the_host(tmp_path, there):
    (tmp_path / "reaped_agents.py").write_text(AGENTS)
    source = f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import stoppable, reaped_agents
        async def main():
            handle = await stoppable.spawn(reaped_agents.leaves_a_daemon, {str(there)!r}, isolation="process")
            await handle.outcome()
        asyncio.run(main())
        """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)]) as host:
        wait_until(there.exists, 60)
        pid = int(there.read_text())
        since = table.start_time(pid)
        assert table.is_running(pid, since)
        host.kill()
    wait_until(lambda: not table.is_running(pid, since))
