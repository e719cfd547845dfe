"""The seven cases in which the app that this contract comes from told an untruth about a stop.

The code of each is plain asyncio and subprocess, as users write it.
"""

import time

import pytest
from tests.process_states import is_alive

from .user_code import wait_for

AWAITS = """
import asyncio, pathlib

async def run(input_dict, tools):
    folder = pathlib.Path(input_dict["folder"])
    try:
        (folder / "began").touch()
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.05)
        (folder / "closed").touch()
"""

RETURNS = """
async def run(input_dict, tools):
    return {"answer": 42}
"""

BACKGROUND = """
import asyncio, pathlib

async def run(input_dict, tools):
    (pathlib.Path(input_dict["folder"]) / "began").touch()
    for _ in range(10_000):
        await asyncio.sleep(0.01)
    return "success"
"""

BLOCKS = """
import pathlib, time

async def run(input_dict, tools):
    folder = pathlib.Path(input_dict["folder"])
    (folder / "began").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return "value"
"""

SWALLOWS = """
import asyncio, pathlib

async def run(input_dict, tools):
    folder = pathlib.Path(input_dict["folder"])
    (folder / "began").touch()
    while not (folder / "go").exists():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            (folder / "swallowed").touch()
    return "success"
"""

EXECUTOR = """
import asyncio, pathlib, time

async def run(input_dict, tools):
    folder = pathlib.Path(input_dict["folder"])

    def work():
        number = 0
        while not (folder / "go").exists():
            (folder / f"effect-{number}").touch()
            (folder / "began").touch()
            time.sleep(0.02)
            number += 1

    await asyncio.get_running_loop().run_in_executor(None, work)
    return "success"
"""

SUBPROCESS = """
import asyncio, pathlib, sys

async def run(input_dict, tools):
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(600)")
    (pathlib.Path(input_dict["folder"]) / "pid").write_text(str(process.pid))
    (pathlib.Path(input_dict["folder"]) / "began").touch()
    await process.wait()
    return "success"
"""

LIVING = [AWAITS, BACKGROUND, BLOCKS, SWALLOWS, EXECUTOR, SUBPROCESS]


def test_none_of_them_knows_what_stops_it():
    assert not any("stop" in code for code in [*LIVING, RETURNS])


def begun(app, code, folder):
    run_id = app.start(code, input={"folder": str(folder)})
    wait_for(folder / "began")
    return run_id


def told_to_stop(app, run_id, **body):
    answer = app.stop(run_id, **body)
    assert answer.status_code == 202
    assert {"runId": run_id, "status": "stopping", "via": "flipped_local"}.items() <= answer.json().items()


def stopped(app, run_id, **body):
    told_to_stop(app, run_id, **body)
    return app.ended(run_id)


def test_await_and_async_finally(app, folder):
    record = stopped(app, begun(app, AWAITS, folder))
    assert (record["status"], record["error"]) == ("stopped", "AgentStopped: Run was stopped by user (ann)")
    assert (folder / "closed").exists()


def test_a_stop_after_completion_is_answered_with_how_it_ended(app):
    run_id = app.start(RETURNS)
    assert app.ended(run_id)["result"] == {"answer": 42}
    answer = app.stop(run_id)
    assert (answer.status_code, answer.json()) == (200, {"runId": run_id, "status": "success"})
    assert app.get(run_id)["status"] == "success"


def test_a_run_in_the_background_is_reached(app, folder):
    assert stopped(app, begun(app, BACKGROUND, folder))["status"] == "stopped"


def test_code_that_blocks_is_never_a_success_after_a_stop_that_reached_it(app, folder):
    run_id = begun(app, BLOCKS, folder)
    if app.isolation == "process":
        assert stopped(app, run_id)["status"] == "stopped"  # its process was killed: it never goes on
        return
    app.stop(run_id, mode="immediate")
    time.sleep(1)  # it is cancelled at once, and given up after five seconds
    assert app.get(run_id)["status"] == "running"  # nothing that lives is called stopped
    (folder / "go").touch()
    record = app.ended(run_id)
    assert (record["status"], record["unconfirmed"]) == ("stopped", False)


def test_code_that_swallows_the_cancel_is_escalated(app, folder):
    record = stopped(app, begun(app, SWALLOWS, folder))
    assert (folder / "swallowed").exists()
    if app.isolation == "process":
        assert record["status"] == "stopped"
    else:
        assert (record["status"], record["unconfirmed"]) == ("error", True)
        assert record["error"].startswith("StopUnconfirmed: may still be running: ")


def test_work_in_an_executor_has_no_effect_after_the_end(app, folder):
    run_id = begun(app, EXECUTOR, folder)
    told_to_stop(app, run_id)
    time.sleep(1.5)  # after a second it is cancelled, which does not end the work; it is given up after six and a half
    (folder / "go").touch()
    assert app.ended(run_id)["status"] == "stopped"
    effects = len(list(folder.glob("effect-*")))
    time.sleep(0.2)  # in which an effect every 20 ms would show
    assert len(list(folder.glob("effect-*"))) == effects


def test_a_subprocess_is_not_orphaned(app, folder):
    run_id = begun(app, SUBPROCESS, folder)
    pid = int((folder / "pid").read_text())
    assert is_alive(pid)
    assert stopped(app, run_id)["status"] == "stopped"
    assert not is_alive(pid)


@pytest.mark.parametrize("mode", ["immediate", "kill"])
def test_a_second_press_is_harder(patient_app, folder, mode):
    run_id = begun(patient_app, SUBPROCESS, folder)
    assert patient_app.stop(run_id).status_code == 202
    assert patient_app.stop(run_id, mode=mode).status_code == 202
    assert patient_app.ended(run_id)["status"] == "stopped"


RETURNS_AFTER_THE_STOP = """
async def run(input_dict, tools):
    open(input_dict["folder"] + "/began", "w").close()
    while not should_stop():
        await asyncio.sleep(0.01)
    return "what there was"
"""
FAILS_AFTER_THE_STOP = RETURNS_AFTER_THE_STOP.replace('return "what there was"', 'raise ValueError("too late")')
EXITS = """
async def run(input_dict, tools):
    raise SystemExit("by itself")
"""


@pytest.mark.parametrize(
    "code", [RETURNS_AFTER_THE_STOP, FAILS_AFTER_THE_STOP, AWAITS], ids=["returns", "fails", "waits"]
)
def test_the_trace_of_a_stopped_run_says_so(app, folder, code):
    record = stopped(app, begun(app, code, folder))
    assert record["status"] == "stopped"
    assert ends(record) == ["stopped"]
    assert record["result"] == ("what there was" if code is RETURNS_AFTER_THE_STOP else None)


def test_the_trace_of_code_that_exits_by_itself_says_error(app):
    record = app.ended(app.start(EXITS))
    assert record["status"] == "error"
    assert ends(record) == ["error"]


def ends(record):
    return [event["outcome"] for event in record["events"] if event["type"] == "agent_end"]


def test_a_mode_that_does_not_exist_is_refused(app, folder):
    run_id = begun(app, AWAITS, folder)
    for mode in ("gentle", "", None, 3):
        assert app.stop(run_id, mode=mode).status_code == 422
    assert app.get(run_id)["status"] == "running"
    assert not app.get(run_id)["stopping"]
    assert stopped(app, run_id, mode="immediate")["status"] == "stopped"
