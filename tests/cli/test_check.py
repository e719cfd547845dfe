"""`stoppable check`: the report card of an agent, also of one that knows nothing of stoppable."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from stoppable.demo.agents import AGENTS as AGENTS_OF_DEMO

AGENTS = '''
import _thread
import asyncio
import os
import subprocess
import threading
import time


async def good():
    await asyncio.to_thread(subprocess.run, ["sleep", "0.02"], check=False)
    return "done"


def quiet():
    """It meets no boundary at all."""
    time.sleep(0.2)


def round_the_boundaries():
    _thread.start_new_thread(time.sleep, (0.05,))
    pid = os.posix_spawn("/bin/sleep", ["sleep", "0.05"], os.environ)
    os.system("true")
    subprocess.run(["true"], check=False)
    os.waitpid(pid, 0)


def leaves_and_writes():
    subprocess.run(["true"], check=False)
    try:
        subprocess.run(["true"], check=False)
    except BaseException:
        pass
    with open("effect", "w"):
        pass
    os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)


async def on_a_foreign_loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    await asyncio.to_thread(subprocess.run, ["true"], check=False)
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def cleans_up():
    try:
        subprocess.run(["true"], check=False)
        subprocess.run(["true"], check=False)
    finally:
        with open("saved", "w"):
            pass


def fails():
    raise ValueError("broken")


async def fails_late():
    await asyncio.sleep(0.3)
    raise ValueError("broken")


def many():
    for _ in range(12):
        subprocess.run(["true"], check=False)
'''


@pytest.fixture
def check(tmp_path):
    (tmp_path / "checked.py").write_text(AGENTS)

    def run(*arguments):
        command = [sys.executable, "-m", "stoppable", "check", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_a_good_agent_passes_in_every_mode_though_it_never_heard_of_us(check):
    done = check("checked:good")
    assert done.returncode == 0, done.stdout + done.stderr
    for mode in ("graceful", "immediate", "kill"):
        assert f"ok   {mode:<9} at spawn:sleep" in done.stdout
    assert done.stdout.strip().endswith("passed")


def test_one_that_meets_no_boundary_is_stopped_in_the_middle(check):
    done = check("checked:quiet", "--json")
    card = json.loads(done.stdout)
    assert card["boundaries"] == []
    assert [trial["at"] for trial in card["trials"]] == ["no boundary"] * 3
    assert card["passed"] is (done.returncode == 0)


def test_what_goes_round_the_boundaries_is_found_with_file_and_line(check, tmp_path):
    done = check("checked:round_the_boundaries", "--json", "--most", "1", "--junit", "junit.xml")
    card = json.loads(done.stdout)
    assert done.returncode == 1
    lines = {text: number for number, text in enumerate(AGENTS.splitlines(), 1)}
    for what, code in (
        ("_thread.start_new_thread", "    _thread.start_new_thread(time.sleep, (0.05,))"),
        ("os.posix_spawn", '    pid = os.posix_spawn("/bin/sleep", ["sleep", "0.05"], os.environ)'),
        ("os.system", '    os.system("true")'),
    ):
        place = f"{what} in round_the_boundaries ({tmp_path / 'checked.py'}:{lines[code]})"
        assert place in card["rounds"]
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", "1")


def test_a_coroutine_on_somebody_elses_loop_is_found_with_file_and_line(check, tmp_path):
    done = check("checked:on_a_foreign_loop", "--json", "--most", "1")
    card = json.loads(done.stdout)
    code = "    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))"
    line = AGENTS.splitlines().index(code) + 1
    assert done.returncode == 1
    place = f"on_a_foreign_loop ({tmp_path / 'checked.py'}:{line})"
    assert f"asyncio.run_coroutine_threadsafe in {place}" in card["rounds"]


def test_effects_after_the_stop_and_what_is_left_are_problems(check):
    done = check("checked:leaves_and_writes", "--json", "--most", "1")
    card = json.loads(done.stdout)
    graceful = card["trials"][0]
    assert done.returncode == 1
    assert any("effect after the stop: open 'effect'" in problem for problem in graceful["problems"])
    assert any("left a process running" in problem for problem in graceful["problems"])


def test_clean_up_is_no_effect_after_the_stop(check):
    done = check("checked:cleans_up", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note outside any boundary: open 'saved'" in done.stdout


@pytest.mark.parametrize("agent", ["fails", "fails_late"])
def test_one_that_fails_by_itself_fails_also_if_every_stop_comes_first(check, agent):
    done = check(f"checked:{agent}")
    assert "FAIL unstopped at its own end: failed" in done.stdout
    assert "it failed by itself: ValueError('broken')" in done.stdout
    assert done.returncode == 1


def test_many_boundaries_are_not_all_tried(check):
    done = check("checked:many", "--most", "2")
    assert "of 12 boundaries, the first 2 were tried" in done.stdout


@pytest.mark.parametrize(
    ("agent", "given", "at"),
    [
        ("research", None, "llm:chat"),
        ("searcher", {"question": "why"}, "llm:chat"),
        ("writer", {"topic": "why", "findings": ["because"]}, "llm:chat"),
        ("stepper", {"steps": 2, "seconds": 0.1}, "no boundary"),
        ("thread_tool", {"rounds": 1}, "tool:crunch"),
        ("process_tree", {"seconds": 1}, "spawn:python"),
    ],
)
def test_the_agents_of_the_demo_pass(check, agent, given, at):
    arguments = [] if given is None else [json.dumps(given)]
    done = check(f"stoppable.demo.agents:{agent}", *arguments, "--model", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"at {at}: stopped" in done.stdout


def test_the_agent_of_the_demo_that_cannot_be_ended_fails_and_its_line_is_named(check):
    given = json.dumps({"seconds": 6})
    done = check("stoppable.demo.agents:blocked_thread", given, "--most", "1", "--within", "0.2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "in blocked_thread (thread stoppable blocked_thread)" in done.stdout


def test_all_agents_of_the_demo_are_checked():
    """All but ``stubborn``, which takes minutes to give up: that it is stopped is tested with the demo itself."""
    tried = {"research", "searcher", "writer", "stepper", "thread_tool", "process_tree", "blocked_thread"}
    assert set(AGENTS_OF_DEMO) - tried == {"stubborn"}
