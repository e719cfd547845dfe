"""Forks of plain code take part, also those whose parent has ended, and are dead when the run is stopped."""

import asyncio
import multiprocessing
import os
import subprocess
import time

import pytest
from tests.waiting import until

import stoppable
from stoppable._engine.processes import table

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def _tell(path):
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def _forked(body):
    """Run a function in a fork, and return when the fork has ended."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _orphan(body):
    """Run a function in a fork whose parent has ended: a daemon."""

    def middle():
        os.setsid()
        if os.fork() == 0:
            body()

    _forked(middle)


def _work(path):
    _tell(path)
    time.sleep(60)


def double_fork(path):
    _orphan(lambda: _work(path))


def without_files(path):
    def work():
        os.closerange(3, 256)  # as a daemon does
        _work(path)

    _orphan(work)


def three_deep(path):
    _orphan(lambda: _orphan(lambda: _orphan(lambda: _work(path))))


def in_multiprocessing(path):
    process = multiprocessing.get_context("fork").Process(target=double_fork, args=(path,))
    process.start()
    process.join()


def a_command_of_an_orphan(path):
    def work():
        command = f"setsid sh -c 'echo $$ > {path}.new; mv {path}.new {path}; exec sleep 60' &"
        subprocess.run(["sh", "-c", command], check=False)

    _orphan(work)


WAYS = [double_fork, without_files, three_deep, in_multiprocessing, a_command_of_an_orphan]


async def _start(way, path):
    def agent():
        way(path)
        stoppable.sync.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(path.exists, 30)
    pid = int(path.read_text())
    return handle, pid, table.start_time(pid)


@pytest.mark.parametrize("mode", ["kill", "immediate", "graceful"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_fork_whose_parent_has_ended_is_dead_when_the_run_is_stopped(way, mode, tmp_path):
    handle, pid, since = await _start(way, tmp_path / "there")
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    assert not table.is_running(pid, since)


async def test_a_fork_of_another_run_goes_on(tmp_path):
    """Both runs, and all forks of this process, show the same environment (G13)."""
    one, _, _ = await _start(double_fork, tmp_path / "one")
    other, pid, since = await _start(double_fork, tmp_path / "other")
    await one.stop("kill")
    assert (await one.outcome()).status == "stopped"
    assert table.is_running(pid, since)
    await other.stop("kill")
    await other.outcome()
    assert not table.is_running(pid, since)


async def test_a_stop_of_the_parent_run_ends_the_forks_that_a_completed_child_has_left(tmp_path):
    async def parent():
        await stoppable.call(double_fork, tmp_path / "there")
        await asyncio.sleep(60)

    handle = await stoppable.spawn(parent)
    await until((tmp_path / "there").exists, 30)
    pid = int((tmp_path / "there").read_text())
    since = table.start_time(pid)
    await until(lambda: all(run.outcome is not None for run in handle.run.list_children()))
    assert table.is_running(pid, since)
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not table.is_running(pid, since)


LINK = '[ "$N" = 0 ] && exit; export N=$((N-1)); echo $$ >> "$F"; sleep 0.02; setsid sh -c "$S" & exit 0'


@pytest.mark.parametrize("mode", ["kill", "immediate", "graceful"])
async def test_a_chain_of_processes_that_start_their_successor_and_end_is_ended(mode, tmp_path):
    log = tmp_path / "log"

    async def agent():
        subprocess.Popen(["sh", "-c", LINK], env={**os.environ, "F": str(log), "S": LINK, "N": "1000"}).wait()
        await stoppable.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: log.exists() and len(log.read_text().split()) > 5, 30)
    await handle.stop(mode)
    assert (await handle.outcome()).status == "stopped"
    links = log.read_text()
    time.sleep(0.2)  # a link takes a tenth of that
    assert log.read_text() == links
