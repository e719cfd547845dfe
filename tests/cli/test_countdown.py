"""Why a stop is not over, and when force comes: said truly, on every screen."""

import re

import pytest

from stoppable import Policy
from stoppable._core.values import Mode, Rung
from stoppable.cli.formatting import Countdown, with_subtrees
from stoppable.records import Climb, RunRecord, RunSummary

from .terminal import CTRL_C, Terminal
from .test_commands import at_work, running

PATIENT = Policy(grace=60, cancel=60)  # however slow the machine is
GRACEFUL = [
    Climb(rung=Rung.INTERRUPT, at=110.0),
    Climb(rung=Rung.CANCEL, at=111.0),
    Climb(rung=Rung.KILL, at=116.0),
    Climb(rung=Rung.LOST, at=118.0),
]


@pytest.mark.parametrize(
    ("in_flight", "now", "told"),
    [
        (["llm:gpt"], 102.0, "llm:gpt in flight: waiting up to 8 s for its answer"),
        (["llm:gpt", "llm:gpt"], 102.0, "llm:gpt ×2 in flight: waiting up to 8 s for their answers"),
        (["tool:search"], 102.5, "tool:search in flight: waiting up to 8 s for it to finish"),
        (["tool:a", "llm:b"], 109.9, "tool:a, llm:b in flight: waiting up to 1 s for them to finish"),
        ([], 103.0, "nothing in flight: cancelled in 8 s"),
        (["llm:gpt"], 110.5, "llm:gpt in flight: cancelled in 1 s"),
        (["llm:gpt"], 111.0, "llm:gpt in flight: killed in 5 s"),
        ([], 116.5, "nothing in flight: given up on in 2 s"),
        ([], 119.0, "nothing in flight"),
        (None, 103.0, "not known what is in flight: cancelled in 8 s"),
    ],
)
def test_a_graceful_stop_says_what_it_waits_for_and_how_long(in_flight, now, told):
    assert Countdown(mode=Mode.GRACEFUL, in_flight=in_flight, ladder=GRACEFUL).describe(now) == told


def test_a_list_begins_with_the_time_as_a_narrow_column_cuts_the_rest():
    going_on = Countdown(mode=Mode.GRACEFUL, in_flight=["llm:gpt"], ladder=GRACEFUL)
    assert going_on.describe_briefly(102.0) == "waiting up to 8 s: llm:gpt in flight"
    assert going_on.describe_briefly(110.5) == "cancelled in 1 s: llm:gpt in flight"
    assert going_on.describe_briefly(119.0) == "llm:gpt in flight"


def test_a_cooperative_stop_has_no_end_and_one_that_was_not_heard_says_so():
    assert Countdown(mode=Mode.COOPERATIVE, in_flight=["llm:gpt"], ladder=[]).describe(0) == (
        "llm:gpt in flight: waiting as long as it takes"
    )
    assert Countdown(mode=Mode.GRACEFUL, in_flight=[], ladder=[]).describe(0) == (
        "nothing in flight: its worker has not seen the stop yet"
    )


def test_what_is_in_flight_below_a_run_counts_for_it():
    def run(name, parent=None, in_flight=()):
        summary = RunSummary.of(RunRecord(id=name, name=name, parent_id=parent))
        return RunSummary(**{field: getattr(summary, field) for field in summary.__slots__} | {"in_flight": in_flight})

    runs = [run("a"), run("b", "a", ("llm:x",)), run("c", "b", ("llm:y",)), run("d", None, None), run("e", "d")]
    below = {name: one.in_flight for name, one in with_subtrees(runs).items()}
    assert below == {"a": ("llm:x", "llm:y"), "b": ("llm:x", "llm:y"), "c": ("llm:y",), "d": None, "e": ()}


def test_a_stop_that_waits_counts_down_and_so_do_watch_ls_and_show(served, stoppable, client):
    run_id = at_work(client, "long_call", policy=PATIENT)
    waits = r"llm:long in flight: waiting up to \d+ s for its answer"
    listed = r"waiting up to \d+ s: llm:long in flight"
    with (
        Terminal("watch", run_id, STOPPABLE_URL=served, columns=100) as watching,
        Terminal("stop", run_id, "--wait", "60", STOPPABLE_URL=served, columns=100) as stopping,
    ):
        stopping.see(rf"stopping \(graceful\): {waits}; Ctrl-C stops waiting")
        watching.see(rf"stopping \(graceful\): {waits}")
        assert re.search(listed, stoppable("ls", "-n", "100").stdout)
        shown = stoppable("show", run_id).stdout
        assert re.search(r"in flight +llm:long\n", shown)
        assert re.search(rf"stopping +{waits}", shown)
        assert re.search(listed, stoppable("tree", run_id).stdout)
        client.stop(run_id, "immediate")
        assert stopping.end() == 0
        assert watching.end() == 6
    assert "stopping: " not in stoppable("stop", run_id).stderr


def test_a_stop_that_does_not_wait_says_why_it_is_not_over(stoppable, client):
    run_id = at_work(client, "stuck", policy=PATIENT)
    first = stoppable("stop", run_id).stderr
    assert re.search(
        r"^stopping: tool:stuck in flight: waiting up to \d+ s for it to finish; stop it again to escalate", first
    )
    again = stoppable("stop", run_id).stderr
    assert re.search(r"^stopping: tool:stuck in flight: killed in \d+ s; stop it again to escalate to kill", again)
    client.stop(run_id, "kill")


def test_a_parent_waits_for_what_its_children_have_in_flight(stoppable, client):
    run_id = running(client, "calling_parent", policy=PATIENT)
    next(event for event in client.events(run_id) if event.type == "progress")
    told = stoppable("stop", run_id).stderr
    assert "llm:long in flight: waiting up to" in told
    client.stop(run_id, "immediate", wait=30)


def test_run_counts_down_in_its_terminal():
    with Terminal("run", "served_agents:long_call", columns=100) as terminal:
        terminal.see("in flight  llm:long")
        terminal.press(CTRL_C)
        first = int(terminal.see(r"llm:long in flight: waiting up to (\d+) s for its answer")[1])
        terminal.see(rf"llm:long in flight: (waiting up to (?!{first} )\d+ s for its answer|\w+ in)")
        terminal.press(CTRL_C)
        assert terminal.end() == 130
