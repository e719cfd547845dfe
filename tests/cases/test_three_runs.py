"""Three runs side by side, of which the middle one is stopped: on a clock that moves when told to, and in real time."""

import subprocess
import sys
from pathlib import Path

from tests.waiting import until

import stoppable
from stoppable.demo.agents import stepper
from stoppable.demo.three_runs import Scenario, list_mistakes, play

EXAMPLE = Path(__file__).parents[2] / "examples/three_runs.py"


def steps(handle):
    return str(handle.run.partial or "").count("\n")


async def second(clock, handles, taken):
    """Let a second pass; whoever has taken a step has lain down to sleep again in the same breath."""
    clock.advance(1)
    await until(lambda: all(steps(handle) == taken for handle in handles))


async def test_b_is_stopped_after_three_seconds_and_nobody_else_notices(clock):
    async with stoppable.Supervisor() as supervisor:
        handles = [await supervisor.start(stepper, 10, 1.0, label) for label in "ABC"]
        await until(lambda: all(handle.status == "running" for handle in handles))
        for taken in (1, 2, 3):
            await second(clock, handles, taken)
        a, b, c = handles
        receipt = await supervisor.stop(b.id, reason="wrong topic", actor="ann")
        assert receipt.answer == "accepted"
        assert (await b.outcome()).partial == "B step 1/10\nB step 2/10\nB step 3/10\n"
        for taken in range(4, 11):
            await second(clock, [a, c], taken)
        clock.advance(0)
        records = [await handle.record() for handle in handles if await handle.outcome()]
        assert [record.status for record in records] == ["completed", "stopped", "completed"]
        assert clock.now() == 10
        assert records[1].outcome.rung == "signal"
        assert records[1].outcome.clean
        assert records[1].stop.reason.actor == "ann"
        assert records[0].receipt is records[2].receipt is None


async def test_the_demo_plays_the_same_in_real_time():
    told = []
    scenario = Scenario(seconds=0.1)
    async with stoppable.Supervisor() as supervisor:
        records = await play(supervisor, scenario, lambda label, event: told.append((label, event.type)))
    assert list_mistakes(records, scenario) == []
    steps = {label: told.count((label, "progress")) for label in "ABC"}
    assert steps == {"A": 10, "B": steps["B"], "C": 10}
    assert 3 <= steps["B"] < 10  # on a busy machine the stop may come a step later; the clock above is exact
    assert all((label, "done") in told for label in "ABC")


def test_a_wrong_status_is_found():
    class Ended:
        def __init__(self, status):
            self.status = stoppable.Status(status)
            self.outcome = None

    records = {"A": Ended("completed"), "B": Ended("completed"), "C": Ended("lost")}
    assert list_mistakes(records, Scenario()) == [
        "B is completed, not stopped",
        "C is lost, not completed",
        "B kept 0 steps, not 3",
    ]


def test_the_example_says_so_too():
    done = subprocess.run(
        [sys.executable, EXAMPLE], env={"STEP_SECONDS": "0.1"}, capture_output=True, text=True, timeout=20, check=True
    )
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == [
        "B: accepted",
        "A: completed",
        "B: stopped",
        "C: completed",
    ]
