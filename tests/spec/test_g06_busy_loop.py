"""G6: the time of a rung counts only while what has to act on it can act, up to a bound."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import until, wait_until

import stoppable
from stoppable import Policy
from stoppable._engine import control, ladder
from stoppable._engine.control import ControlThread
from stoppable._engine.processes.adopted import Family
from stoppable._engine.processes.group import Force, GroupThread
from stoppable.testing import FakeClock

SHORT = Policy(grace=0.2, interrupt=0.1, cancel=0.3, kill=0.3, blind_grace=0.2)
BLOCKED_SECONDS = 1.5  # longer than all rungs of that policy


@pytest.fixture
def impatient(monkeypatch):
    """A bound that a test can wait for."""
    monkeypatch.setattr(ladder, "_LEAST_BOUND_SECONDS", 1.0)


class Loop:
    """A loop on a thread of its own, which a test blocks and releases."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        self.released = threading.Event()

    def _work(self):
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.close()

    def run(self, steps):
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result(30)

    def block(self):
        """Keep the loop from turning; return once it does not."""
        blocked = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (blocked.set(), self.released.wait(120)))
        assert blocked.wait(30)

    def close(self):
        self.released.set()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(30)


@pytest.fixture
def aside():
    made = Loop()
    yield made
    made.close()


@pytest.mark.parametrize("mode", ["graceful", "immediate", "kill"])
@pytest.mark.parametrize("looks", [True, False], ids=["looks", "blind"])
async def test_a_loop_that_other_code_blocks_makes_no_run_lost(mode, looks):
    saved = []

    async def agent():
        if looks:
            stoppable.check()
        try:
            with stoppable.boundary("tool", "wait"):
                await asyncio.sleep(60)
        finally:
            for _ in range(3):
                await asyncio.sleep(0.01)
            saved.append(True)

    handle = await stoppable.spawn(agent, policy=SHORT)
    await asyncio.sleep(0)
    await handle.stop(mode)
    time.sleep(BLOCKED_SECONDS)  # another agent, in the same loop
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    if mode != "kill":
        assert (outcome.rung, saved) == ("cancel", [True]), "its clean-up has the time that the policy gives it"


async def test_a_clean_up_has_its_time_after_the_loop_was_blocked():
    """Blocked for longer than the rung: without that, KILL would come as soon as the loop turns."""
    steps = []

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            for step in range(10):
                await asyncio.sleep(0.1)
                steps.append(step)

    handle = await stoppable.spawn(agent, policy=Policy(cancel=3, kill=3))
    await asyncio.sleep(0)
    await handle.stop("immediate")
    time.sleep(4)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, len(steps)) == ("stopped", "cancel", 10)


async def test_a_run_that_was_stopped_before_its_first_step_is_not_lost():
    handle = await stoppable.spawn(asyncio.sleep, 60, policy=SHORT)
    handle.run.stop("kill")
    time.sleep(BLOCKED_SECONDS)
    assert (await handle.outcome()).status == "stopped"


async def test_a_run_that_blocks_its_own_loop_for_longer_than_the_rungs_is_not_lost():
    blocked = threading.Event()

    async def agent():
        stoppable.check()
        blocked.set()
        time.sleep(BLOCKED_SECONDS)
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent, policy=SHORT)
    threading.Thread(target=lambda: (blocked.wait(30), handle.run.stop("kill"))).start()
    assert (await handle.outcome()).status == "stopped"


async def test_a_loop_that_the_run_itself_blocks_delays_no_rung_but_lost():
    """Its code can act, and CANCEL may be what ends the process that it waits for."""
    blocked, go_on = threading.Event(), threading.Event()

    async def agent():
        stoppable.check()
        blocked.set()
        go_on.wait(60)
        await asyncio.sleep(60)

    def press():
        blocked.wait(30)
        handle.run.stop("graceful")
        wait_until(lambda: handle.run.rung == "kill", within=60)
        go_on.set()

    handle = await stoppable.spawn(agent, policy=SHORT)
    thread = threading.Thread(target=press)
    thread.start()
    assert (await handle.outcome()).status == "stopped"
    thread.join(30)
    assert handle.run.receipt.ladder[-1].after < 9, "the bound of each rung is ten seconds"


@pytest.mark.parametrize("policy", [Policy(kill=0.1), Policy(kill=0.5), Policy(kill=0)])
def test_a_loop_that_is_blocked_for_ever_does_not_hold_a_stop_for_ever(policy, aside, impatient):
    handle = aside.run(stoppable.spawn(asyncio.sleep, 60, policy=policy))
    aside.run(asyncio.sleep(0))
    aside.block()
    began = time.monotonic()
    handle.run.stop("kill")
    outcome = wait_until(lambda: handle.run.outcome)
    assert outcome.status == "lost"
    assert time.monotonic() - began >= max(1.0, 3 * policy.kill), "not before the bound"
    assert [step.rung for step in handle.run.receipt.ladder] == ["interrupt", "cancel", "kill", "lost"]


def test_a_loop_that_executes_no_part_of_the_run_delays_nothing(aside):
    """A policy with long rungs: what was postponed would be seen."""
    other = Loop()
    try:
        idle = other.run(stoppable.spawn(asyncio.sleep, 60))
        stubborn = aside.run(stoppable.spawn(_stubborn, policy=Policy(kill=0.5)))
        other.block()
        stubborn.run.stop("kill")
        assert wait_until(lambda: stubborn.run.outcome).status == "lost"
        lost_after = stubborn.run.receipt.ladder[-1].after
        assert lost_after < 9, "the bound is ten seconds"
        other.released.set()
        idle.run.stop("kill")
        assert wait_until(lambda: idle.run.outcome).status == "stopped"
    finally:
        other.close()


async def _stubborn():
    stoppable.check()
    run = stoppable.current_run()
    while run.outcome is None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def test_while_a_rung_is_postponed_the_receipt_says_when_it_will_be(aside):
    handle = aside.run(stoppable.spawn(asyncio.sleep, 60, policy=Policy(kill=0.2)))
    aside.run(asyncio.sleep(0))
    aside.block()
    receipt = handle.run.stop("kill")
    assert receipt.ladder[-1].after == 0.2
    await until(lambda: handle.run.receipt.ladder[-1].after > 0.4)
    assert handle.run.receipt.ladder[-1].rung == "lost"
    assert handle.run.kill_at() <= handle.run.receipt.requested_at + 0.1, "KILL itself was not postponed"
    aside.released.set()
    outcome = await until(lambda: handle.run.outcome)
    assert outcome.status == "stopped"
    assert [step.rung for step in handle.run.receipt.ladder] == ["interrupt", "cancel", "kill"]


def test_what_was_about_to_end_when_the_time_was_over_has_ended(aside, monkeypatch):
    """No stall counts in this test: only the last look is left."""
    monkeypatch.setattr(control, "LATE_SECONDS", 60.0)
    handle = aside.run(stoppable.spawn(asyncio.sleep, 60, policy=Policy(kill=0.3)))
    aside.run(asyncio.sleep(0))
    aside.block()
    handle.run.stop("kill")
    wait_until(lambda: handle.run.first_stop.is_delayed)
    aside.released.set()
    assert wait_until(lambda: handle.run.outcome).status == "stopped"


async def _plain():
    with subprocess.Popen(["sleep", "60"]):
        await asyncio.sleep(60)


async def _adopted():
    with stoppable.detached():
        process = subprocess.Popen(["sleep", "60"])
    with process:
        stoppable.adopt_process(pid=process.pid, name="sleep")
        await asyncio.sleep(60)


async def _command():
    await stoppable.run_process(["sleep", "60"])


@pytest.fixture
def deaf_to_term():
    """Let what a test starts ignore TERM, so that it is KILL that ends it, however long after TERM that comes."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("slow_search", [1, 2], ids=["that-kills", "that-finds-none"])
@pytest.mark.parametrize("agent", [_plain, _adopted, _command])
@pytest.mark.usefixtures("deaf_to_term")
async def test_processes_are_searched_once_more_before_they_are_given_up(monkeypatch, agent, slow_search):
    """Busy threads make a search take seconds, and what follows from it; the process was dead long before."""
    stoppable.instrument()
    searching, may_search, kills = threading.Event(), threading.Event(), []

    def slow(search, kills_now):
        def searched(self, *args):
            is_kill = kills_now(self, *args)
            result = search(self, *args)
            if is_kill:
                kills.append(result)
                if len(kills) == slow_search:
                    searching.set()
                    may_search.wait(60)
            return result

        return searched

    handle = await stoppable.spawn(agent, policy=Policy(kill=0.1))
    await until(lambda: handle.run.in_flight)
    monkeypatch.setattr(Family, "strike", slow(Family.strike, lambda _, signum: signum is signal.SIGKILL))
    send_pending = slow(GroupThread._send_pending, lambda thread: thread._group.force is Force.KILL)
    monkeypatch.setattr(GroupThread, "_send_pending", send_pending)
    await handle.stop("kill")
    assert await asyncio.to_thread(searching.wait, 30)
    time_of_lost = handle.run.receipt.ladder[-1].after
    await until(lambda: handle.run.outcome or handle.run.receipt.ladder[-1].after > time_of_lost + 0.2)
    may_search.set()
    assert (await handle.outcome()).status == "stopped"
    assert {node.name: node.fate for node in handle.run.receipt.entries if node.kind == "spawn"} == {"sleep": "killed"}


def test_many_ladders_share_one_ping_of_their_loop(aside, monkeypatch):
    answers = []
    answer = control.Pulse._answer
    monkeypatch.setattr(control.Pulse, "_answer", lambda self: (answers.append(self), answer(self)))
    handles = [aside.run(stoppable.spawn(asyncio.sleep, 60, policy=Policy(kill=0.5))) for _ in range(200)]
    aside.run(asyncio.sleep(0))
    aside.block()
    for handle in handles:
        handle.run.stop("kill")
    wait_until(lambda: all(handle.run.first_stop.is_delayed for handle in handles))
    aside.released.set()
    for handle in handles:
        assert wait_until(lambda handle=handle: handle.run.outcome).status == "stopped"
    assert 0 < len(answers) < len(handles) / 2


async def test_the_loop_of_a_run_that_has_obeyed_is_left_alone():
    handle = await stoppable.spawn(asyncio.sleep, 60)
    await asyncio.sleep(0)
    await handle.stop("immediate")
    await handle.outcome()
    await until(lambda: not control.get().waiting)


class Sluggish:
    def wait(self, seconds):
        time.sleep(seconds + 2 * control.LATE_SECONDS)


def test_a_control_thread_that_is_woken_late_remembers_for_how_long():
    made = ControlThread()
    made._bell = Sluggish()
    made._sleep(time.monotonic() + 0.01)
    assert control.covered_seconds(made.starved, 0) >= control.LATE_SECONDS


def test_a_control_thread_that_is_kept_from_working_between_two_timers_remembers_for_how_long():
    made = ControlThread()
    made._last_note = time.monotonic(), time.thread_time()
    time.sleep(2 * control.LATE_SECONDS)
    made._note_delay()
    assert control.covered_seconds(made.starved, 0) >= control.LATE_SECONDS


FROZEN = """
    import asyncio, os, signal, stoppable

    async def agent():
        try:
            await asyncio.sleep(60)
        finally:
            os.kill(os.getpid(), signal.SIGSTOP)
            await asyncio.sleep(1)  # for what wrongly ends it after the suspension
            print("saved", flush=True)

    async def main():
        policy = stoppable.Policy(cancel=3, kill=3)
        handle = await stoppable.spawn(agent, policy=policy)
        await asyncio.sleep(0)
        await handle.stop("immediate")
        outcome = await handle.outcome()
        print(outcome.status, outcome.rung)

    asyncio.run(main())
"""


def test_a_fake_clock_that_is_ahead_leaves_no_time_in_which_the_process_could_not_run():
    """Later stops would wait for that time, and their runs would not be lost before it."""
    control.ensure_started()
    thread = control.get()

    def has_turned():
        steps = thread._steps
        wait_until(lambda: thread._steps > steps + 1)

    has_turned()
    with FakeClock() as fake:
        fake.advance(time.monotonic() + 3600)
        has_turned()
    has_turned()
    assert control.covered_seconds(thread.starved, time.monotonic()) == 0


def test_the_time_in_which_the_process_was_suspended_does_not_count():
    script = [sys.executable, "-c", textwrap.dedent(FROZEN)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        status = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
        time.sleep(4)  # longer than the rung
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate(timeout=60)[0].split("\n")[:2] == ["saved", "stopped cancel"]


class _AlwaysLate(list):
    """What the control thread notes on a machine that is too busy all the time: it is late again and again."""

    def __init__(self):
        self._since = time.monotonic()

    def __iter__(self):
        now, begin = time.monotonic(), self._since
        while begin < now:
            yield begin, min(begin + 0.3, now)
            begin += 0.3


async def test_a_machine_that_is_always_too_busy_does_not_hold_a_stop_for_ever(monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(control.get(), "starved", _AlwaysLate())
    handle = await stoppable.spawn(release.wait, 60, policy=Policy(kill=0.05))
    await until(lambda: handle.run.started_at)
    await handle.stop("kill")
    assert (await handle.outcome()).status == "lost"
    release.set()


async def test_a_loop_with_one_long_turn_after_another_is_measured_throughout():
    """Each of them is shorter than the pause between two pings of the control thread."""
    loop = asyncio.get_running_loop()
    control.follow_loop(loop)
    found = control.pulse_of(loop)
    began = time.monotonic()
    await until(lambda: found.beat(3600) or found.turned_at >= began)
    first = time.monotonic()
    found.ping()
    for _ in range(6):
        time.sleep(2 * control.LATE_SECONDS)
        await asyncio.sleep(0)
    assert control.covered_seconds(found.stalls(), first) >= 11 * control.LATE_SECONDS
    await until(lambda: found._sent_at is None)


def test_times_that_overlap_count_once():
    assert control.covered_seconds([(1, 4), (2, 3), (3, 6), (8, 9)], 0) == 6
    assert control.covered_seconds([(1, 4), (2, 3), (3, 6), (8, 9)], 3.5) == 3.5
    assert control.covered_seconds([], 0) == 0


def test_a_closed_loop_is_waited_for_no_longer():
    loop = asyncio.new_event_loop()
    control.follow_loop(loop)
    control.follow_loop(loop)
    found = control.pulse_of(loop)
    loop.close()
    found.ping()
    assert found.is_steady(time.monotonic())
    key = id(loop)
    del loop
    wait_until(lambda: key not in control._pulses)
    found.ping()
