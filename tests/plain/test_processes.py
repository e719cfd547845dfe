"""Plain processes of a run take part, however they are started."""

import asyncio
import contextlib
import functools
import multiprocessing
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest
import uvloop
from tests.waiting import until, until_its_loop_knows

import stoppable
from stoppable._engine.instrumentation.processes import Processes
from stoppable._engine.processes import table

from .process_bodies import touch_and_sleep

NAP = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"


def _command(there):
    return [sys.executable, "-c", NAP, str(there)]


def _popen(there):
    subprocess.Popen(_command(there)).wait()


def _run(there):
    subprocess.run(_command(there), check=False)


def _shell(there):
    os.environ["THERE"] = str(there)
    subprocess.run('touch "$THERE"; sleep 60 & sleep 60', shell=True, check=False)


def _env_by_position(there):
    subprocess.Popen(_command(there), -1, None, None, None, None, None, True, False, None, dict(os.environ)).wait()


def _fork(there):
    pid = os.fork()
    if pid == 0:
        try:
            touch_and_sleep(there)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _forkpty(there):
    pid, master = pty.fork()
    if pid == 0:
        try:
            touch_and_sleep(there)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(master)


def _multiprocessing(method, there):
    process = multiprocessing.get_context(method).Process(target=touch_and_sleep, args=(str(there),))
    process.start()
    process.join()


BLOCKING = {
    "Popen": _popen,
    "run": _run,
    "shell": _shell,
    "env by position": _env_by_position,
    "fork": _fork,
    "forkpty": _forkpty,
    "multiprocessing fork": functools.partial(_multiprocessing, "fork"),
    "multiprocessing spawn": functools.partial(_multiprocessing, "spawn"),
    "multiprocessing forkserver": functools.partial(_multiprocessing, "forkserver"),
}
FORKS = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@FORKS
@pytest.mark.parametrize("way", BLOCKING.values(), ids=BLOCKING)
async def test_a_process_is_ended_by_the_stop(way, tmp_path):
    there = tmp_path / "there"
    with _nothing_left():
        handle = await stoppable.spawn(way, there)
        await until(there.exists, 30)
        receipt = await handle.stop("immediate")
        assert len(receipt.in_flight) == 1
        assert receipt.in_flight[0].startswith("spawn:")
        outcome = await handle.outcome()
        assert (outcome.status, outcome.rung) == ("stopped", "cancel")
        assert [node.fate for node in handle.run.receipt.entries if node.kind == "spawn"] == ["cancelled"]


@contextlib.contextmanager
def _nothing_left():
    before = set(table.children())
    yield
    left = {pid: table.name(pid) for pid in set(table.children()) - before}
    # the interpreter's own helpers: the resource tracker and the fork server
    assert len(left) <= 2, left
    assert all(name.startswith("python") for name in left.values()), left


async def _exec(there, started):
    process = await asyncio.create_subprocess_exec(*_command(there))
    started.append(process)
    await process.wait()


async def _async_shell(there, started):
    process = await asyncio.create_subprocess_shell(f"touch '{there}'; exec sleep 60")
    started.append(process)
    await process.wait()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("way", [_exec, _async_shell], ids=["exec", "shell"])
def test_a_process_of_an_event_loop_is_ended_by_the_stop(way, new_loop, tmp_path):
    there, started = tmp_path / "there", []

    async def main():
        handle = await stoppable.spawn(way, there, started)
        await until(lambda: there.exists() and started, 30)
        receipt = await handle.stop("immediate")
        outcome = await handle.outcome()
        await until_its_loop_knows(started[0])
        return receipt, outcome

    with _nothing_left(), asyncio.Runner(loop_factory=new_loop) as runner:
        receipt, outcome = runner.run(main())
    assert outcome.status == "stopped"
    assert len(receipt.in_flight) == 1


@FORKS
async def test_a_process_that_the_stop_ended_before_its_starter_went_on_was_cancelled(tmp_path, monkeypatch):
    """Busy threads keep the one that forked from going on, while the child works already."""
    there, goes_on = tmp_path / "there", threading.Event()
    follow = Processes.follow

    def follow_late(self, effect, pid):
        goes_on.wait(30)
        follow(self, effect, pid)

    monkeypatch.setattr(Processes, "follow", follow_late)
    before = set(table.children())
    handle = await stoppable.spawn(_fork, there)
    await until(there.exists, 30)
    await handle.stop("immediate")
    await until(lambda: set(table.children()) <= before)
    goes_on.set()
    assert (await handle.outcome()).status == "stopped"
    assert [node.fate for node in handle.run.receipt.entries if node.kind == "spawn"] == ["cancelled"]


async def test_what_ignores_term_is_killed(tmp_path, clock):
    there = tmp_path / "there"

    def agent():
        subprocess.run(["sh", "-c", f"trap '' TERM; touch '{there}'; sleep 60 & wait; wait; sleep 60"], check=False)

    handle = await stoppable.spawn(agent)
    await until(there.exists)
    await handle.stop("immediate")
    await asyncio.sleep(0.05)
    assert handle.status == "stopping"
    clock.advance(5)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "kill", False)


async def test_what_escaped_to_a_session_of_its_own_is_found_and_holds_stopped_back(tmp_path):
    """A daemon: the process that was started has ended, and what it left bears the cookie."""
    there = tmp_path / "there"

    def agent():
        subprocess.run(
            ["sh", "-c", f"setsid sh -c 'echo $$ > {there}.new; mv {there}.new {there}; sleep 60' &"], check=False
        )
        stoppable.sync.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(there.exists)
    pid = int(there.read_text())
    since = table.start_time(pid)
    await until(lambda: not handle.run.in_flight)
    await handle.stop("graceful", grace=0.2)
    assert (await handle.outcome()).status == "stopped"
    assert not table.is_running(pid, since)


async def test_a_run_that_completes_leaves_its_processes_alone_and_a_later_stop_of_its_parent_ends_them(tmp_path):
    pids, processes = [], []

    def child():
        processes.append(subprocess.Popen(["sleep", "60"]))
        pids.append(processes[0].pid)
        daemon = subprocess.run(
            ["sh", "-c", "setsid sleep 60 > /dev/null 2>&1 & echo $!"], capture_output=True, check=True
        )
        pids.append(int(daemon.stdout))

    async def parent():
        await stoppable.call(child)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(parent)
    await until(lambda: len(pids) == 2)
    await until(lambda: all(run.outcome is not None for run in handle.run.list_children()))
    since = [table.start_time(pid) for pid in pids]
    assert all(map(table.is_running, pids, since))
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert not any(map(table.is_running, pids, since))
    assert processes[0].wait(30) == -signal.SIGTERM


async def test_after_a_completed_root_nothing_is_signalled():
    processes = []

    def agent():
        processes.append(subprocess.Popen(["sleep", "60"]))

    handle = await stoppable.spawn(agent)
    await handle.result()
    receipt = await handle.stop("kill")
    assert receipt.answer == "already_finished"
    assert processes[0].poll() is None
    processes[0].kill()
    processes[0].wait(30)


async def test_after_the_stop_no_process_is_started_but_clean_up_may():
    cleaned, refused = [], []

    def agent():
        try:
            stoppable.sync.sleep(60)
        except stoppable.AgentStopped:
            pass  # swallowed
        try:
            subprocess.run(["true"], check=False)
        except stoppable.AgentStopped as stop:
            refused.append(stop)
        try:
            stoppable.check()
        finally:
            cleaned.append(subprocess.run(["true"], check=False).returncode)

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, len(refused), cleaned) == ("stopped", 1, [0])
    assert handle.run.receipt.entered_after == ("spawn:true",)


async def test_cancel_spares_what_clean_up_has_started():
    codes = []

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            process = await asyncio.create_subprocess_exec("sleep", "0.3")
            codes.append(await process.wait())

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert codes == [0]


async def test_kill_ends_what_clean_up_has_started(clock):
    began = threading.Event()

    def agent():
        try:
            while True:
                stoppable.sync.sleep(60)
        finally:
            with subprocess.Popen(["sleep", "60"]) as process:
                began.set()
                process.wait()

    handle = await stoppable.spawn(agent)
    await until(lambda: handle.status == "running")
    await handle.stop("immediate")
    await until(began.is_set)
    clock.advance(5)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "kill")


async def test_a_command_that_does_not_exist_is_no_process():
    def agent():
        for args in (["/does/not/exist"], [], [None]):
            with pytest.raises((OSError, ValueError, TypeError, IndexError)):
                subprocess.Popen(args)
        return stoppable.current_run().in_flight

    assert await (await stoppable.spawn(agent)).result() == ()


async def test_a_sibling_keeps_its_process():
    processes = {}

    async def child(name):
        processes[name] = await asyncio.create_subprocess_exec("sleep", "60")
        await processes[name].wait()

    async def parent():
        one, other = await stoppable.spawn(child, "one"), await stoppable.spawn(child, "other")
        await until(lambda: len(processes) == 2)
        await one.stop("immediate")
        assert (await one.outcome()).status == "stopped"
        assert processes["other"].returncode is None
        await other.stop("immediate")
        await other.outcome()
        for process in processes.values():
            await until_its_loop_knows(process)
        return processes["other"].returncode

    assert await (await stoppable.spawn(parent)).result() == -signal.SIGTERM


async def test_a_program_that_serves_everybody_can_be_spared(tmp_path):
    stoppable.instrument(spare=["served-by-all"])
    program = tmp_path / "served-by-all"
    program.symlink_to("/bin/sleep")
    pids = []

    def agent():
        started = subprocess.run(
            ["sh", "-c", f"setsid '{program}' 60 > /dev/null 2>&1 & echo $!"], capture_output=True, check=True
        )
        pids.append(int(started.stdout))
        stoppable.sync.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: pids)
    await handle.stop("graceful", grace=0.1)
    assert (await handle.outcome()).status == "stopped"
    since = table.start_time(pids[0])
    assert table.is_running(pids[0], since)
    os.kill(pids[0], signal.SIGKILL)


async def test_a_process_that_cannot_be_ended_makes_the_run_lost_and_is_named(clock, monkeypatch):
    monkeypatch.setattr(table.Members, "signal", lambda self, pid, signum: None)  # as for one of another user
    processes = []

    def agent():
        processes.append(subprocess.Popen(["sleep", "60"]))
        processes[0].wait()

    handle = await stoppable.spawn(agent)
    # For a moment after the start, the system names it as the program that started it.
    await until(lambda: processes and table.name(processes[0].pid) == "sleep")
    await handle.stop("kill")
    clock.advance(2)
    assert (await handle.outcome()).status == "lost"
    told = [node.name for node in handle.run.receipt.entries if node.kind == "participant"]
    assert any(f"processes {processes[0].pid} (sleep)" in name for name in told), (told, processes[0])
    processes[0].kill()
    await until(lambda: handle.run.main is None)


async def test_outside_and_detached_a_process_is_as_ever():
    processes = [subprocess.Popen(["sleep", "60"])]

    async def agent():
        with stoppable.detached():
            processes.append(subprocess.Popen(["sleep", "60"]))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(processes) == 2)
    receipt = await handle.stop("immediate")
    assert (await handle.outcome()).status == "stopped"
    assert receipt.in_flight == ()
    for process in processes:
        assert process.poll() is None
        process.kill()
        process.wait(30)


async def test_our_own_processes_are_not_plain_ones():
    async def agent():
        result = await stoppable.run_process(["true"])
        handle = await stoppable.spawn(time.sleep, 0, isolation="process")
        await handle.outcome()
        return result.returncode

    handle = await stoppable.spawn(agent)
    assert await handle.result() == 0


@FORKS
async def test_what_cannot_be_started_leaves_nothing_open(monkeypatch):
    def refuse(*_args):
        raise OSError("no more processes")

    stoppable.uninstrument()
    monkeypatch.setattr(os, "fork", refuse)
    stoppable.instrument()

    def agent():
        with pytest.raises(OSError, match="no more"):
            os.fork()
        with pytest.raises(OSError, match="no more"):
            multiprocessing.get_context("fork").Process(target=print).start()
        return stoppable.current_run().in_flight

    assert await (await stoppable.spawn(agent)).result() == ()
    stoppable.uninstrument()


def test_uvloop_is_as_ever_outside_a_run_and_where_a_program_is_missing():
    async def agent():
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec("/does/not/exist")
        return stoppable.current_run().in_flight

    async def main():
        process = await asyncio.create_subprocess_exec("true")
        assert await process.wait() == 0
        return await (await stoppable.spawn(agent)).result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == ()


def _interrupted(tmp_path):
    """Run a command that dies of Ctrl-C once a file is there, as commands in a terminal do."""
    script = f"until test -e {tmp_path}/press; do sleep 0.01; done; kill -INT $$; sleep 60"
    try:
        subprocess.run(["sh", "-c", script], check=True)
    finally:
        (tmp_path / "died").touch()


async def _interrupted_async(tmp_path):
    await asyncio.to_thread(_interrupted, tmp_path)


def _interrupted_and_hidden(tmp_path):
    try:
        _interrupted(tmp_path)
    except subprocess.CalledProcessError as error:
        raise RuntimeError("the backup failed") from error


@pytest.fixture
def _ctrl_c():
    """Let commands die of it: they ignore it where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def on_ctrl_c(test):
    bodies = [_interrupted, _interrupted_async, _interrupted_and_hidden]
    return pytest.mark.usefixtures("_ctrl_c")(pytest.mark.parametrize("body", bodies)(test))


@on_ctrl_c
async def test_a_run_whose_command_dies_of_the_ctrl_c_that_stops_it_is_stopped(body, tmp_path):
    """A terminal sends Ctrl-C to commands too."""
    handle = await stoppable.spawn(body, tmp_path)
    await until(lambda: "spawn:sh" in handle.run.in_flight)
    await handle.stop()
    (tmp_path / "press").touch()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.error, outcome.clean) == ("stopped", "signal", None, True)
    assert [str(entry.fate) for entry in handle.run.receipt.entries if entry.kind == "spawn"] == ["finished"]


@on_ctrl_c
async def test_so_it_is_if_the_command_dies_before_the_ctrl_c_is_handled(body, tmp_path, monkeypatch):
    monkeypatch.setattr("stoppable._engine.edge._CTRL_C_SECONDS", 30)
    (tmp_path / "press").touch()
    handle = await stoppable.spawn(body, tmp_path)
    await until((tmp_path / "died").exists)
    await handle.stop()
    assert (await handle.outcome()).status == "stopped"


@on_ctrl_c
async def test_without_a_stop_a_run_whose_command_was_interrupted_has_failed(body, tmp_path):
    (tmp_path / "press").touch()
    outcome = await (await stoppable.spawn(body, tmp_path)).outcome()
    assert outcome.status == "failed"
