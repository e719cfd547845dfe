"""Processes that somebody else started and a run adopts."""

import asyncio
import os
import pty
import signal
import subprocess
import sys

import pytest
from tests.process_states import is_alive
from tests.unit.process_tools import STUBBORN
from tests.waiting import until, wait_until

import stoppable
from stoppable import Fate, InvalidArgument, Policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")

QUICK = Policy(grace=0.1, interrupt=0.1, cancel=0.3, kill=5.0)


@pytest.fixture
def foreign():
    """Start processes of which stoppable knows nothing, and leave none of them."""
    made = []

    def start(command):
        process = subprocess.Popen(["sh", "-c", command], start_new_session=True, stdout=subprocess.PIPE, text=True)
        made.append(process)
        return process

    with stoppable.detached():
        yield start
    for process in made:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def fates(run):
    return [(node.name, node.fate) for node in run.receipt.entries if node.kind == "spawn"]


def _adopt(**which):
    async def adopts():
        stoppable.adopt_process(**which)
        await stoppable.sleep(60)

    return adopts


async def test_an_adopted_process_dies_with_the_run_and_is_in_the_receipt(foreign):
    process = foreign("echo up; exec sleep 1000")
    assert process.stdout.readline() == "up\n"
    handle = await stoppable.spawn(_adopt(pid=process.pid))
    await until(lambda: handle.run.in_flight)
    assert handle.run.in_flight == (f"spawn:pid {process.pid}",)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not is_alive(process.pid)
    assert fates(handle.run) == [(f"pid {process.pid}", Fate.CANCELLED)]


async def test_what_it_has_started_dies_too(foreign):
    process = foreign("sleep 1000 & echo $!; wait")
    child = int(process.stdout.readline())
    handle = await stoppable.spawn(_adopt(pid=process.pid, name="shell"))
    await until(lambda: handle.run.in_flight)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not is_alive(child)
    assert not is_alive(process.pid)


async def test_one_that_ignores_term_is_killed(foreign):
    process = foreign(f"trap '' TERM; echo up; {STUBBORN}")
    assert process.stdout.readline() == "up\n"
    handle = await stoppable.spawn(_adopt(pid=process.pid), policy=QUICK)
    await until(lambda: handle.run.in_flight)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "kill")
    assert not is_alive(process.pid)


async def test_a_group_dies_whole_also_when_its_leader_is_gone(foreign):
    process = foreign("sleep 1000 & echo $!; sleep 1000 & echo $!; exit 0")
    left = [int(process.stdout.readline()) for _ in range(2)]
    process.wait()
    handle = await stoppable.spawn(_adopt(pgid=process.pid))
    await until(lambda: handle.run.in_flight)
    assert handle.run.in_flight == (f"spawn:group {process.pid}",)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not any(map(is_alive, left))


async def test_the_foreground_job_of_a_terminal_is_ended_and_its_shell_lives_on():
    master, slave = pty.openpty()
    with stoppable.detached():
        shell = subprocess.Popen(["setsid", "-c", "sh", "-i"], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        os.write(master, b"sleep 1000\n")
        group = await until(lambda: _in_front(master, shell.pid), within=30)
        handle = await stoppable.spawn(_adopt(pgid=group, name="job"))
        await until(lambda: handle.run.in_flight)
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
        assert shell.poll() is None
    finally:
        shell.kill()
        os.close(master)
        shell.wait()


def _in_front(master, shell):
    group = os.tcgetpgrp(master)
    return group if group not in (0, shell) else None


async def test_one_that_ends_by_itself_is_no_longer_in_flight(foreign):
    process = foreign("exec sleep 1000")
    async with stoppable.open_run("job") as run:
        adopted = stoppable.adopt_process(pid=process.pid)
        assert adopted.alive
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: not adopted.alive)
        assert run.in_flight == ()
    assert run.status == "completed"


async def test_a_run_that_ends_without_a_stop_leaves_it_alone(foreign):
    process = foreign("exec sleep 1000")
    async with stoppable.open_run("job"):
        adopted = stoppable.adopt_process(pid=process.pid)
    assert not adopted.alive
    assert is_alive(process.pid)


async def test_one_that_was_released_goes_on_after_the_stop(foreign):
    process = foreign("exec sleep 1000")

    async def body():
        with stoppable.adopt_process(pid=process.pid):
            pass
        await stoppable.sleep(60)

    handle = await stoppable.spawn(body)
    await until(lambda: handle.run.started_at)
    await handle.stop("kill")
    assert (await handle.outcome()).status == "stopped"
    assert is_alive(process.pid)


async def test_one_that_is_adopted_after_the_stop_is_ended(foreign):
    process = foreign("exec sleep 1000")
    reached = []

    async def body():
        stoppable.current_run().stop("cooperative")
        try:
            stoppable.adopt_process(pid=process.pid)
        finally:
            reached.append(True)

    outcome = await (await stoppable.spawn(body)).outcome()
    assert (outcome.status, reached) == ("stopped", [True])
    assert not is_alive(process.pid)


async def test_a_shield_around_the_adoption_holds_term_back(foreign):
    process = foreign("exec sleep 1000")
    adopted, proceed = asyncio.Event(), asyncio.Event()

    async def body():
        with stoppable.shielded(30):
            stoppable.adopt_process(pid=process.pid)
            adopted.set()
            await proceed.wait()

    handle = await stoppable.spawn(body)
    await adopted.wait()
    await handle.stop("immediate")
    await until(lambda: handle.run.rung == "cancel")
    assert is_alive(process.pid)
    proceed.set()
    assert (await handle.outcome()).status == "stopped"
    assert not is_alive(process.pid)


def test_outside_a_run_nothing_is_adopted(foreign):
    process = foreign("exec sleep 1000")
    with stoppable.adopt_process(pid=process.pid) as adopted:
        assert not adopted.alive
    assert is_alive(process.pid)


@pytest.mark.parametrize(
    "which",
    [{}, {"pid": 3, "pgid": 3}, {"pid": True}, {"pid": 1}, {"pid": "7"}, {"pgid": -1}],
)
def test_what_is_no_process_is_refused(which):
    with pytest.raises(InvalidArgument, match="give one of them"):
        stoppable.adopt_process(**which)


@pytest.mark.parametrize(("name", "number"), [("pid", os.getpid), ("pgid", os.getpgrp), ("pid", os.getppid)])
def test_this_process_and_those_above_it_cannot_be_adopted(name, number):
    with pytest.raises(InvalidArgument, match="would end this one"):
        stoppable.adopt_process(**{name: number()})


def test_one_that_is_gone_already_is_no_error(foreign):
    process = foreign("exit 0")
    process.wait()
    with stoppable.open_run("job") as run:
        adopted = stoppable.adopt_process(pid=process.pid)
        wait_until(lambda: not adopted.alive)
        assert run.in_flight == ()
