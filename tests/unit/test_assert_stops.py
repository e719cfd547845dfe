"""assert_stops and assert_stops_everywhere find what is wrong with an agent."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import threading
import time

import pytest

import stoppable
from stoppable._engine.processes import table
from stoppable.testing import assert_stops, assert_stops_everywhere


@stoppable.boundary("llm")
async def ask(number):
    await asyncio.sleep(0.001)
    return number


@stoppable.boundary("tool")
def look_up(number):
    return number


async def good():
    for number in range(3):
        look_up(await ask(number))
    return "done"


async def test_a_good_agent_passes():
    outcome = await assert_stops(good, at="llm")
    assert outcome.status == "stopped"
    assert (await assert_stops(good, at="tool:look_up")).status == "stopped"
    assert await assert_stops_everywhere(good) == 6


async def test_a_blocking_agent_passes_too():
    def blocking(times):
        for number in range(times):
            look_up(number)

    assert await assert_stops_everywhere(blocking, 3) == 3


async def test_a_boundary_that_is_never_entered_is_reported():
    with pytest.raises(AssertionError, match="never entered 'store'"):
        await assert_stops(good, at="store")


async def test_an_agent_that_fails_by_itself_is_reported():
    """It may have entered no boundary at all: to stop it at each of them would prove nothing."""

    async def asks(number):
        await ask(number)

    with pytest.raises(AssertionError, match=r"asks failed by itself: TypeError\(.*'number'"):
        await assert_stops_everywhere(asks)
    with pytest.raises(AssertionError, match=r"never entered 'llm'.*TypeError\(.*'number'"):
        await assert_stops(asks, at="llm")


@pytest.mark.parametrize("check", [lambda agent: assert_stops(agent, at="store"), assert_stops_everywhere])
async def test_a_check_that_is_cancelled_ends_its_run(check):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless():
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    checking = asyncio.create_task(check(endless))
    await begun.wait()
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    async with asyncio.timeout(30):
        await ended.wait()


async def test_an_agent_that_hangs_is_reported_with_the_place():
    async def deaf():
        await ask(1)
        await asyncio.sleep(60)

    with pytest.raises(AssertionError, match=r"still running 0\.1 s after the stop: test_assert_stops.* in deaf"):
        await assert_stops(deaf, at="llm", within=0.1)


async def test_an_agent_that_does_not_end_by_itself_is_reported(monkeypatch):
    monkeypatch.setattr(
        "stoppable.testing.stop_assertions._DRY_RUN_SECONDS", 0.05
    )  # half a minute would be a slow test

    async def endless():
        await asyncio.sleep(60)

    with pytest.raises(AssertionError, match="did not end by itself"):
        await assert_stops_everywhere(endless)


async def test_an_effect_round_the_boundaries_is_reported(tmp_path):
    async def sneaky():
        await ask(1)
        (tmp_path / "written").write_text("no boundary around this")
        await ask(2)

    with pytest.raises(AssertionError, match=r"went round the boundaries: open .*in sneaky"):
        await assert_stops_everywhere(sneaky)


async def test_an_effect_in_a_task_that_has_no_code_of_the_user_is_reported_where_it_is_awaited():
    async def sneaky():
        await ask(1)
        async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.create_task(asyncio.open_connection("127.0.0.1", port))
            writer.close()
        await ask(2)

    with pytest.raises(
        AssertionError, match=r"went round the boundaries: socket\.connect .* in sneaky \(.*assert_stops"
    ):
        await assert_stops_everywhere(sneaky)


async def test_an_effect_inside_a_boundary_or_a_read_is_fine(tmp_path):
    async def proper():
        with stoppable.boundary("store"):
            (tmp_path / "written").write_text("guarded")
        assert (tmp_path / "written").read_text() == "guarded"

    assert await assert_stops_everywhere(proper) == 1


async def test_a_shielded_effect_after_the_stop_is_reported():
    async def greedy():
        try:
            await ask(1)
            await ask(2)
        finally:
            with stoppable.shielded(1):
                await ask(3)

    with pytest.raises(AssertionError, match="entered after the stop: llm:ask"):
        await assert_stops(greedy, at="llm")


async def test_a_thread_that_is_left_is_reported():
    release = threading.Event()

    async def leaky():
        threading.Thread(target=release.wait, args=(5,), name="left behind").start()
        await ask(1)

    with pytest.raises(AssertionError, match="left a thread running: left behind"):
        await assert_stops(leaky, at="llm")
    release.set()


async def test_an_agent_that_fails_because_of_the_stop_is_reported():
    async def clumsy():
        await ask(1)
        time.monotonic()
        raise ValueError("clumsy")

    outcome = await assert_stops(clumsy, at="llm")
    assert outcome.status == "failed", "it failed by itself before anything was delivered: the stop came too late"


@pytest.fixture
def ends_what_was_reported():
    """Kill the processes that a report names: the agents of these tests leave them."""
    reports = []
    yield reports
    for report in reports:
        for pid in re.findall(r"left a process running: (\d+)", str(report.value)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "env"),
    [
        pytest.param("echo up; exec sleep 1001", None, id="a child"),
        pytest.param("echo up; exec sleep 1001", {"PATH": os.environ["PATH"]}, id="a child with another environment"),
        pytest.param("setsid setsid sh -c 'echo up; exec sleep 1001' & exit", None, id="one that left"),
    ],
)
async def test_a_process_that_is_left_is_reported(ends_what_was_reported, command, env):
    children = []

    async def leaky():
        with stoppable.boundary("tool", "start"):
            children.append(subprocess.Popen(["sh", "-c", command], env=env, stdout=subprocess.PIPE))
            assert children[0].stdout.readline() == b"up\n"  # it has left by now
        await ask(1)

    try:
        with pytest.raises(AssertionError, match=r"left a process running: \d+ \(.*sleep 1001'?\)") as report:
            await assert_stops(leaky, at="llm")
        ends_what_was_reported.append(report)
        assert table.GROUPS not in os.environ
    finally:
        children[0].send_signal(signal.SIGKILL)
        children[0].wait(60)
        children[0].stdout.close()


async def test_a_command_that_was_detached_and_outlives_the_run_is_reported():
    opened = []

    async def leaky():
        with stoppable.detached():
            opened.append(await stoppable.open_process(["sleep", "1001"]))
        await ask(1)

    with pytest.raises(AssertionError, match=r"stopped at boundary 1 .*left a process running: \d+ \(sleep 1001\)"):
        await assert_stops_everywhere(leaky)
    for process in opened:
        await process.aclose()


async def test_what_is_left_is_named_also_where_the_system_shows_no_processes(monkeypatch):
    monkeypatch.setattr(table, "PROC", "/nonexistent")
    opened = []

    async def leaky():
        with stoppable.detached():
            opened.append(await stoppable.open_process(["sleep", "1001"]))
        await ask(1)

    with pytest.raises(AssertionError, match=r"left a process running: process group \d+ \(sleep\)"):
        await assert_stops(leaky, at="llm")
    await opened[0].aclose()


async def test_commands_and_workers_that_end_with_the_run_are_no_leftovers(monkeypatch):
    monkeypatch.setenv(table.GROUPS, "outer")

    async def agent():
        await stoppable.run_process(["true"])
        assert await (await stoppable.spawn(len, "ab", isolation="process")).result() == 2
        await ask(1)

    assert await assert_stops_everywhere(agent) == 2
    assert os.environ[table.GROUPS] == "outer"
