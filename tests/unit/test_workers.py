"""Agents in agent processes: what crosses, what cannot, and what is left when one of the two dies."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from tests import worker_agents
from tests.waiting import until

import stoppable
from stoppable._core.node import Sink
from stoppable._engine.isolation.messages import LIMIT
from stoppable._engine.processes.table import Members

from .process_tools import agent_of

AGENTS = """
import asyncio, ctypes, os, resource, signal, subprocess, sys, threading, time
import stoppable

def double(x, *, plus=0):
    return 2 * x + plus

async def double_async(x, *, plus=0):
    await asyncio.sleep(0)
    return 2 * x + plus

def broken():
    raise ValueError("own error")

class Odd(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")

def broken_oddly():
    raise Odd("odd error")

def unpicklable():
    return lambda: None

def huge(size):
    return bytes(size)

async def tokens(count, path=None):
    for number in range(count):
        yield number
        if path and number == 1:
            open(path, "w").close()
            while not stoppable.current_run().token.stopped:
                await asyncio.sleep(0.001)

def pages(count, path=None):
    for number in range(count):
        yield number
        if path and number == 1:
            open(path, "w").close()
            while not stoppable.current_run().token.stopped:
                time.sleep(0.001)
    return "all of them"

def breaks_off():
    yield 1
    raise ValueError("own error")

def dies():
    yield 1
    os._exit(3)

def yields_a_lambda():
    yield 1
    yield lambda: None

def exits():
    os._exit(3)

def leaves():
    sys.exit(3)

async def leaves_async():
    sys.exit(3)

def leaves_between_items():
    yield 1
    sys.exit(3)

async def leaves_between_items_async():
    yield 1
    sys.exit(3)

def interrupted():
    raise KeyboardInterrupt

async def interrupted_outside_its_task():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background of a shell
    asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
    await asyncio.sleep(60)

async def leaves_a_thread_behind():
    await stoppable.spawn(time.sleep, 60)
    sys.exit(3)

def segfaults():
    ctypes.string_at(0)

def out_of_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
    return len(bytearray(1 << 30))

def tells():
    stoppable.append_partial("a")
    stoppable.append_partial("b")
    stoppable.emit("progress", step=1)
    with stoppable.boundary("tool", "inner"):
        return stoppable.current_run().id

def unsendable_partial():
    stoppable.set_partial(lambda: None)

def calls(times):
    for _ in range(times):
        with stoppable.boundary("llm"):
            pass

def stops_itself():
    stoppable.current_run().stop("cooperative", "had enough")
    stoppable.check()

@stoppable.agent
def child(path):
    with stoppable.boundary("tool", "deep"):
        open(path, "w").close()
        time.sleep(60)

def parent_of_child(path):
    child(path)

def stuck(path):
    open(path, "w").close()
    time.sleep(60)

async def deaf(path):
    while True:
        try:
            open(path, "w").close()
            await asyncio.sleep(60)
        except BaseException:
            pass

def family(path):
    shell = "sleep 1001 & (setsid setsid sleep 1002 &) ; trap '' TERM; touch {} ; sleep 1003".format(path)
    subprocess.run(["sh", "-c", shell])
"""


@pytest.fixture
def agents(importable):
    return importable("worker_agents", AGENTS)


async def run(agent, *args):
    return await (await stoppable.spawn(agent, *args, isolation="process")).outcome()


async def test_arguments_and_values_cross(agents):
    import functools

    assert (await run(agents.double, 21)).result == 42
    assert (await run(functools.partial(agents.double, plus=1), 21)).result == 43
    assert (await run(functools.partial(agents.double_async, plus=1), 21)).result == 43


async def test_errors_cross_with_their_traceback(agents):
    outcome = await run(agents.broken)
    assert (outcome.status, repr(outcome.error)) == ("failed", "ValueError('own error')")
    assert "in broken" in outcome.error.__notes__[0]
    odd = await run(agents.broken_oddly)
    assert repr(odd.error) == "RuntimeError('Odd: odd error')"


async def test_partials_events_and_boundaries_cross(agents):
    seen = []

    class Told(Sink):
        def entered(self, run, boundary):
            seen.append(f"entered {boundary.label}")

        def left(self, run, boundary):
            seen.append(f"left {boundary.label}")

        def partial(self, run, value, *, appended):
            seen.append(f"partial {value} {appended}")

        def event(self, run, kind, data):
            seen.append(f"{kind} {data}")

    async with stoppable.open_run("watched") as watched:
        watched.sink = Told()
        handle = await stoppable.spawn(agents.tells, isolation="process")
        outcome = await handle.outcome()
    assert (outcome.result, outcome.partial) == (handle.id, "ab")
    assert seen == [
        "partial a True",
        "partial b True",
        "progress {'step': 1}",
        "entered tool:inner",
        "left tool:inner",
    ]


@pytest.mark.parametrize(("name", "result"), [("tokens", None), ("pages", "all of them")])
async def test_what_a_generator_yields_crosses(agents, name, result):
    handle = await stoppable.spawn(getattr(agents, name), 1000, isolation="process")
    assert [number async for number in handle.stream()] == list(range(1000))
    assert await handle.result() == result


@pytest.mark.parametrize("name", ["tokens", "pages"])
async def test_a_stop_lands_between_two_items_in_the_worker(agents, tmp_path, name):
    handle = await stoppable.spawn(getattr(agents, name), 1000, str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    await handle.stop("cooperative")
    received = []
    with pytest.raises(stoppable.RunStopped):
        async for number in handle.stream():
            received.append(number)
    assert received == [0, 1, 2]
    assert handle.run.outcome.clean


@pytest.mark.parametrize(
    ("name", "message"),
    [("breaks_off", "own error"), ("dies", "ended with code 3"), ("yields_a_lambda", "must be picklable")],
)
async def test_what_was_yielded_before_an_error_in_the_worker_is_kept(agents, name, message):
    received = []
    with pytest.raises(stoppable.RunFailed, match=message):
        async for number in (await stoppable.spawn(getattr(agents, name), isolation="process")).stream():
            received.append(number)
    assert received == [1]


async def test_what_cannot_be_sent_is_a_clear_error_and_nothing_is_started(agents):
    def local():
        pass

    for bad, message in (
        (lambda: None, "top level of a module"),
        (local, "top level of a module"),
    ):
        with pytest.raises(stoppable.InvalidArgument, match=message):
            await stoppable.spawn(bad, isolation="process")
    with pytest.raises(stoppable.InvalidArgument, match="must be picklable"):
        await stoppable.spawn(agents.double, lambda: None, isolation="process")
    with pytest.raises(stoppable.InvalidArgument, match="name of a file instead"):
        await stoppable.spawn(agents.double, bytes(LIMIT), isolation="process")
    with pytest.raises(stoppable.InvalidArgument, match="use auto or process"):
        await stoppable.spawn(agents.double, 1, isolation="thread of gold")
    assert stoppable.current_run() is None


async def test_results_that_cannot_be_sent_are_clear_errors(agents):
    for outcome, message in (
        (await run(agents.unpicklable), "must be picklable"),
        (await run(agents.huge, LIMIT), "name of a file instead"),
        (await run(agents.unsendable_partial), "must be picklable"),
    ):
        assert outcome.status == "failed"
        assert message in str(outcome.error)


def test_an_agent_of_the_started_script_is_a_clear_error():
    source = """
        import asyncio, stoppable
        def agent(): pass
        async def main(): await stoppable.spawn(agent, isolation="process")
        try:
            asyncio.run(main())
        except stoppable.InvalidArgument as error:
            print(error)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "move it to a module of its own" in done.stdout


async def test_an_agent_that_the_worker_does_not_find_is_a_clear_error(agents, tmp_path):
    (tmp_path / "worker_agents.py").write_text("")
    outcome = await run(agents.double, 1)
    assert outcome.status == "failed"
    assert "there is no 'double' in module 'worker_agents'" in str(outcome.error)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "ended with code 3 before its agent returned"),
        ("segfaults", "ended by SIGSEGV before its agent returned"),
        ("out_of_memory", "MemoryError"),
    ],
)
async def test_a_crash_of_the_worker_is_failed_with_a_clear_error(agents, name, message):
    outcome = await run(getattr(agents, name))
    assert outcome.status == "failed"
    assert message in repr(outcome.error) + str(outcome.error)


@pytest.mark.parametrize(
    "name",
    ["leaves", "leaves_async", "leaves_between_items", "leaves_between_items_async", "interrupted"],
)
async def test_an_exit_of_the_interpreter_in_the_worker_is_failed_as_in_a_thread(agents, name):
    outcome = await run(getattr(agents, name))
    error = KeyboardInterrupt if name == "interrupted" else SystemExit
    assert (outcome.status, outcome.reason, type(outcome.error)) == ("failed", None, error)


async def test_an_interrupt_that_hits_the_event_loop_of_the_worker_is_stopped(agents):
    outcome = await run(agents.interrupted_outside_its_task)
    assert (outcome.status, outcome.error) == ("stopped", None)


async def test_an_exit_in_the_worker_beside_a_thread_that_hangs_ends_both(agents):
    outcome = await run(agents.leaves_a_thread_behind)
    assert (outcome.status, type(outcome.error)) == ("failed", SystemExit)


@pytest.mark.parametrize("who", [agent_of, lambda worker: worker._reaped.reaper.pid], ids=["agent", "reaper"])
async def test_a_worker_that_is_killed_from_outside_is_failed(agents, tmp_path, who):
    handle = await stoppable.spawn(agents.stuck, str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    os.kill(who(_worker(handle)), signal.SIGKILL)
    outcome = await handle.outcome()
    assert (outcome.status, "SIGKILL" in str(outcome.error)) == ("failed", True)


async def test_limits_count_what_happens_in_the_worker(agents):
    with pytest.raises(stoppable.RunStopped, match="limit of 3 llm"):
        async with stoppable.open_run("limited", limits=stoppable.Limits(boundaries={"llm": 3})):
            await (await stoppable.spawn(agents.calls, 1000, isolation="process")).outcome()
            stoppable.check()


async def test_a_run_that_stops_itself_in_the_worker_is_stopped_here(agents):
    outcome = await run(agents.stops_itself)
    assert (outcome.status, outcome.reason.message) == ("stopped", "had enough")


async def test_a_stop_before_the_start_starts_no_process(agents, monkeypatch):
    started = []
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a))  # sees what is started, starts nothing
    handle = await stoppable.spawn(asyncio.sleep, 0)
    handle.run.stop()
    assert (await handle.outcome()).status == "stopped"
    assert not started


@pytest.mark.parametrize("name", ["stuck", "deaf"])
async def test_kill_always_works(agents, tmp_path, name):
    handle = await stoppable.spawn(getattr(agents, name), str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    await handle.stop("kill")
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.clean) == ("stopped", "kill", False)


async def test_a_stop_escalates_into_the_worker(agents, tmp_path):
    """The agent swallows its cancel, so a graceful stop takes long; a kill after it ends the agent process."""
    handle = await stoppable.spawn(agents.deaf, str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    first = await handle.stop("graceful")
    assert first.acknowledged_at is not None
    second = await handle.stop("kill")
    assert second.answer == "escalated"
    assert (await handle.outcome()).rung == "kill"


async def test_the_receipt_tells_of_runs_inside_the_worker(agents, tmp_path):
    handle = await stoppable.spawn(agents.parent_of_child, str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    receipt = await handle.stop("kill")
    assert receipt.in_flight == ("tool:deep",)
    await handle.outcome()
    assert ("tool", "deep", "killed") in [(node.kind, node.name, node.fate) for node in handle.run.receipt.entries] or (
        "tool",
        "deep",
        "abandoned",
    ) in [(node.kind, node.name, node.fate) for node in handle.run.receipt.entries]


@pytest.mark.parametrize("mode", ["kill", "graceful"])
async def test_children_and_grandchildren_of_a_worker_die_with_it(agents, tmp_path, mode):
    """One of them called setsid twice, the shell ignores TERM."""
    handle = await stoppable.spawn(agents.family, str(tmp_path / "there"), isolation="process")
    await _exists(tmp_path / "there")
    members = _worker(handle)._reaped.members
    assert len(members.pids()) >= 4
    policy = {"grace": 0.0} if mode == "graceful" else {}
    await handle.stop(mode, **policy)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "kill")
    assert members.pids() == []


def test_workers_die_by_themselves_when_their_parent_is_killed(tmp_path):
    """After a kill -9 of the parent, the reaper reads the end of its leash and ends everything."""
    (tmp_path / "worker_agents.py").write_text(AGENTS)
    source = f"""
        import asyncio, sys
        sys.path.insert(0, {str(tmp_path)!r})
        import stoppable, worker_agents
        async def main():
            handle = await stoppable.spawn(worker_agents.family, {str(tmp_path / "there")!r}, isolation="process")
            while not handle.run.members or not any(hasattr(m, "_reaped") for m in handle.run.members):
                await asyncio.sleep(0.001)
            worker = next(m for m in handle.run.members if hasattr(m, "_reaped"))
            print(worker._reaped.members._cookie.decode(), worker._reaped.reaper.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True)
    try:
        cookie, pid = parent.stdout.readline().split()
        deadline = time.monotonic() + 60
        while not (tmp_path / "there").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        members = Members(cookie, int(pid))
        members._since = 0  # they were started before this
        assert len(members.pids()) >= 4
        parent.kill()
        parent.wait(60)
        while members.pids() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert members.pids() == []
    finally:
        parent.kill()
        parent.wait(60)
        parent.stdout.close()


def _worker(handle):
    return next(member for member in handle.run.members if hasattr(member, "_reaped"))


async def _exists(path):
    await until(path.exists, within=60)


@pytest.mark.parametrize(
    ("agent", "is_blind", "blind_grace"), [(worker_agents.never_looks, True, 0.1), (worker_agents.looks, False, 60)]
)
async def test_a_run_that_never_looked_is_told_so_also_in_a_worker_process(tmp_path, agent, is_blind, blind_grace):
    path = tmp_path / "there"
    policy = stoppable.Policy(blind_grace=blind_grace, grace=60)
    handle = await stoppable.spawn(agent, str(path), isolation="process", policy=policy)
    await until(path.exists, 30)
    await handle.stop()
    await until(lambda: handle.run.receipt.acknowledged_at is not None, 30)
    assert handle.run.receipt.blind is is_blind
    if is_blind:
        assert (await handle.outcome()).status == "stopped"  # the grace is a minute
        assert handle.run.receipt.blind
    else:
        await handle.stop("kill")
        await handle.outcome()
