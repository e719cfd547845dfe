"""The control thread is woken for what is due soon, and for nothing else."""

import subprocess
import sys
import threading

import pytest

from stoppable._core import clock
from stoppable._engine import control
from stoppable._engine.control import ControlThread


@pytest.fixture
def asleep():
    """A control whose thread has looked and sleeps."""
    made = ControlThread()
    looked = threading.Event()
    made.call_at(clock.now(), looked.set)
    assert looked.wait(60)
    while made._wakes_at <= clock.now() or made._wakes_at == float("inf"):
        pass
    return made


def test_what_is_due_later_than_the_thread_sleeps_wakes_nobody_and_is_called_in_time(asleep):
    called = threading.Event()
    began = clock.now()
    asleep.call_at(began + 2 * control.TICK_SECONDS, called.set)
    assert not asleep._bell.is_ringing
    assert called.wait(60)
    assert clock.now() - began >= 2 * control.TICK_SECONDS


@pytest.fixture
def sound_asleep(monkeypatch, request):
    """One whose thread does not look by itself."""
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)
    return request.getfixturevalue("asleep")


def test_what_is_due_now_wakes_it(sound_asleep):
    called = threading.Event()
    sound_asleep.call_at(clock.now(), called.set)
    assert called.wait(60)


def test_nothing_is_forgotten_however_it_meets_the_thread_falling_asleep():
    """Timers are set all the while that the thread looks, sleeps and wakes."""
    made, called = ControlThread(), []
    done = threading.Event()
    for number in range(3000):
        made.call_at(clock.now() + (number % 3) * 0.0005, lambda number=number: called.append(number))
    made.call_at(clock.now() + 0.01, done.set)
    assert done.wait(60)
    assert sorted(called) == list(range(3000))


def test_a_timer_that_was_cancelled_before_the_thread_looked_is_not_kept(asleep):
    timer = asleep.call_at(clock.now() + 60, lambda: None)
    timer.cancel()
    looked = threading.Event()
    asleep.call_at(clock.now(), looked.set)
    assert looked.wait(60)
    assert all(kept is not timer for _, _, kept in asleep._heap)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ZeroDivisionError])
def test_nothing_that_a_callback_raises_ends_the_thread(asleep, error):
    def fail():
        raise error

    called = threading.Event()
    asleep.call_at(clock.now(), fail)
    asleep.call_at(clock.now(), called.set)
    assert called.wait(60)


def test_timers_that_were_cancelled_are_not_kept_until_they_would_have_been_due():
    """Every run with a limit of an hour leaves one."""
    made = ControlThread(threaded=False)
    fired = []
    now = clock.now()
    for number in range(20_000):
        timer = made.call_at(now + 3600 + number, lambda number=number: fired.append(number))
        made.next_due()
        if number % 10_000:
            timer.cancel()
    assert len(made._heap) < 5_000
    assert made.next_due() is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: now + 40_000)
        made.run_due()
    assert fired == [0, 10_000]


def test_a_loop_that_outlives_the_modules_leaves_nothing_in_the_log():
    code = """
import asyncio, stoppable

async def main():
    await (await stoppable.spawn(asyncio.sleep, 0)).outcome()

loop = asyncio.kept = asyncio.new_event_loop()
loop.run_until_complete(main())
loop.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
