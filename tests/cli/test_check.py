"""`stoppable check`: the report card of an agent, also of one that knows nothing of stoppable."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from stoppable.demo.agents import AGENTS as AGENTS_OF_DEMO
from stoppable.testing import ModelServer

AGENTS = '''
import _thread
import asyncio
import concurrent.futures
import contextlib
import os
import subprocess
import sys
import threading
import time

import a_library
import httpx
import stoppable


async def good():
    await asyncio.to_thread(subprocess.run, ["sleep", "0.02"], check=False)
    return "done"


a_second = 1


def quiet():
    """It meets no boundary at all, and works on for a moment when it is told to stop, after its first second."""
    global a_second
    run, end, a_second = stoppable.current_run(), time.monotonic() + a_second, 100
    while run.status == "running" and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.05)


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


client = httpx.AsyncClient(base_url=os.environ.get("OPENAI_BASE_URL", ""))


async def asks():
    """Its client keeps a connection, which belongs to the event loop of the first call."""
    with stoppable.boundary("llm", "ask"):
        await client.post("chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "why"}]})
    stoppable.check()


first = True


def only_once():
    """As a library that looks at the machine before its first call, and remembers what it found."""
    global first
    if first:
        first = False
        subprocess.run(["true"], check=False)
    with stoppable.boundary("tool", "work"):
        pass
    stoppable.check()


def never_again():
    global first
    if first:
        first = False
        subprocess.run(["true"], check=False)


async def exits():
    with stoppable.boundary("tool", "work"):
        pass
    stoppable.check()
    sys.exit(3)


async def blocks():
    with stoppable.boundary("tool", "work"):
        # It blocks the event loop for longer than a trial takes, as an agent with a blocking client does.
        time.sleep(4)


def pooled():
    pool = concurrent.futures.ThreadPoolExecutor(2)
    return list(pool.map(str.upper, ["a", "b"]))


def in_a_thread_that_does_not_end():
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, 6).result()


async def misspelt():
    for kind in ("lmm", "modelcall", "tool", "ledger"):
        with stoppable.boundary(kind, "ask"):
            await asyncio.sleep(0)
    stoppable.check()


async def connects():
    """A library connects in a task that it starts itself, as anyio does."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    with contextlib.closing(server):
        writer = await a_library.connect(server.sockets[0].getsockname()[1])
        writer.close()
        await asyncio.sleep(0.05)
'''

LIBRARY = """
import asyncio


async def connect(port):
    _, writer = await asyncio.create_task(asyncio.open_connection("127.0.0.1", port))
    return writer
"""


@pytest.fixture
def check(tmp_path):
    (tmp_path / "checked.py").write_text(AGENTS)
    # Where `pip install --user` would put it, so that it is not the user's code.
    packages = tmp_path / "base/lib/python{}.{}/site-packages".format(*sys.version_info)
    packages.mkdir(parents=True)
    (packages / "a_library.py").write_text(LIBRARY)
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONUSERBASE": str(tmp_path / "base")}

    def run(*arguments, **more):
        command = [sys.executable, "-m", "stoppable", "check", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env={**environment, **more}, capture_output=True, text=True, timeout=120, check=False
        )

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


def test_a_client_of_the_module_lives_through_all_trials(check):
    with ModelServer() as model:
        done = check("checked:asks", OPENAI_BASE_URL=model.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("at llm:ask: stopped") == 3


def test_a_boundary_that_a_trial_does_not_reach_is_not_reached_and_never_ok(check, tmp_path):
    done = check("checked:only_once", "--junit", "junit.xml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("at spawn:true: not reached") == 3
    assert "ok   graceful  at spawn:true" not in done.stdout
    assert done.stdout.count("at tool:work: stopped") == 3  # not one boundary too far
    suite = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("failures"), suite.get("skipped"), len(suite.findall("*/skipped"))) == ("0", "3", 3)


def test_an_agent_of_which_nothing_was_tried_does_not_pass(check):
    done = check("checked:never_again")
    assert done.returncode == 1
    assert "nothing was tried" in done.stdout


def test_the_trials_go_on_after_one_that_ends_the_program(check):
    done = check("checked:exits", "--json")
    card = json.loads(done.stdout)
    assert [trial["status"] for trial in card["trials"]] == ["failed", "stopped", "stopped", "stopped"]


def test_a_trial_that_blocks_the_loop_does_not_hold_up_the_next_ones(check):
    done = check("checked:blocks", "--json", "--within", "0.2")
    card = json.loads(done.stdout)
    assert [(trial["at"], trial["reached"]) for trial in card["trials"]] == [("tool:work", True)] * 3


def test_the_threads_of_the_users_pool_are_not_a_librarys(check):
    done = check("checked:pooled")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of a library" not in done.stdout
    assert done.stdout.count("note worker of a thread pool") == 1


def test_a_thread_that_cannot_be_ended_is_named_once_and_the_remedy_with_it(check):
    done = check("checked:in_a_thread_that_does_not_end", "--within", "0.2", "--most", "1")
    assert done.returncode == 1
    assert "worker of a thread pool" not in done.stdout
    [line] = {line.strip() for line in done.stdout.splitlines() if "docs/limits.md" in line}
    assert "timeout" in line
    assert "--process" in line


@pytest.mark.parametrize(
    "agent", ["round_the_boundaries", "leaves_and_writes", "on_a_foreign_loop", "fails", "never_again"]
)
def test_each_failure_has_a_remedy_in_one_line_with_a_page_that_exists(check, agent):
    done = check(f"checked:{agent}", "--most", "1")
    assert done.returncode == 1
    *blocks, last = re.split(r"(?m)^  (?=FAIL|ok|note|-  )", done.stdout)[1:]
    failures = [block for block in [*blocks, last] if block.startswith("FAIL")]
    assert failures
    root = Path(__file__).parents[2]
    for failure in failures:
        remedies = re.findall(r"^ +-> .+: (docs/\S+?\.md)(?:#(\S+))?$", failure, re.MULTILINE)
        assert remedies, failure
        for page, anchor in remedies:
            headings = re.findall(r"^#+ (.+)$", (root / page).read_text(), re.MULTILINE)
            assert not anchor or anchor in {re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in headings}


def test_kinds_that_look_like_typos_are_pointed_out(check):
    done = check("checked:misspelt", "--most", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "note 'lmm' (lmm:ask) is not a kind that stoppable knows: did you mean 'llm'?" in done.stdout
    assert "note 'modelcall' (modelcall:ask) is not a kind that stoppable knows: did you mean 'llm'?" in done.stdout
    assert re.search(r"note 'ledger' \(ledger:ask\) is not a kind that stoppable knows: [^?]+\n", done.stdout)
    assert "'tool'" not in done.stdout


def test_an_effect_in_a_task_that_a_library_started_is_at_the_users_line(check):
    done = check("checked:connects")
    line = AGENTS.splitlines().index("        writer = await a_library.connect(server.sockets[0].getsockname()[1])") + 1
    [note] = [line for line in done.stdout.splitlines() if "outside any boundary: socket.connect" in line]
    assert f"checked.py:{line}" in note
    assert "card.py" not in done.stdout


def test_the_force_that_was_needed_is_explained(check):
    done = check("checked:quiet")
    assert re.search(r"kill +at no boundary: stopped after [\d.]+ s \(force: kill\)", done.stdout)
    assert "force: " in done.stdout.splitlines()[-2]


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
