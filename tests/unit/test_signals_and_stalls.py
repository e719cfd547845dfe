"""Nothing ends or stalls the control thread: no signal, no callback that hangs, no exception from outside."""

import asyncio
import contextlib
import ctypes
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until

import stoppable
from stoppable._core import clock
from stoppable._engine import control
from stoppable._engine.control import Alarm, ControlThread

STOPS = 200
SHORT = stoppable.Policy(grace=0.01, interrupt=0.005, cancel=5, kill=5, blind_grace=0.01)


@contextlib.contextmanager
def pestered(threads):
    """Send a signal with a handler to threads, again and again, as a profiler does."""
    previous = signal.signal(signal.SIGUSR1, lambda *_: None)
    over = threading.Event()

    def pester():
        while not over.wait(0.0003):
            for thread in threads():
                signal.pthread_kill(thread.ident, signal.SIGUSR1)

    pest = threading.Thread(target=pester)
    pest.start()
    try:
        yield
    finally:
        over.set()
        pest.join()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # drops those that a thread has blocked
        signal.signal(signal.SIGUSR1, previous)


def of_control():
    return [thread for thread in threading.enumerate() if thread.name == "stoppable-control" and thread.ident]


def test_a_wait_keeps_its_deadline_whenever_a_signal_comes():
    waits = []

    def wait():
        for number in range(1000):
            assert not Alarm().wait(0.0005)
            waits.append(number)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    with pestered(lambda: [thread] if thread.is_alive() else []):
        thread.join(60)
    assert len(waits) == 1000


def test_rings_that_nobody_waits_for_count_once():
    alarm = Alarm()
    alarm.ring()
    alarm.ring()
    assert alarm.is_ringing
    assert alarm.wait(60)
    assert not alarm.wait(0.001)


async def test_every_stop_ends_while_signals_hit_the_control_thread():
    with pestered(of_control):
        for _ in range(STOPS):
            handle = await stoppable.spawn(asyncio.sleep, 60, policy=SHORT)
            await asyncio.sleep(0)
            await handle.stop()
            async with asyncio.timeout(30):
                assert (await handle.outcome()).status == "stopped"


def blocked_in(status):
    mask = next(line for line in Path(status).read_text().splitlines() if line.startswith("SigBlk:"))
    return int(mask.split()[1], 16)


def test_the_waiting_control_thread_leaves_signals_to_others_except_its_own_faults():
    made = ControlThread()
    made.ensure_started()
    status = f"/proc/self/task/{wait_until(lambda: made._thread.native_id)}/status"
    blocked = wait_until(lambda: blocked_in(status))
    for signum in (signal.SIGALRM, signal.SIGPROF, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        assert blocked & 1 << (signum - 1)
    assert not blocked & 1 << (signal.SIGSEGV - 1)


def test_what_the_control_thread_starts_does_not_inherit_its_mask():
    """A process in which TERM is blocked could not be ended in an orderly way."""
    made, masks = ControlThread(), []
    done = threading.Event()
    look = [sys.executable, "-c", "print([l.split()[1] for l in open('/proc/self/status') if 'SigBlk' in l][0])"]

    def start_both():
        masks.append(int(subprocess.run(look, capture_output=True, check=True).stdout, 16))
        thread = threading.Thread(target=lambda: masks.append(len(signal.pthread_sigmask(signal.SIG_BLOCK, []))))
        thread.start()
        thread.join()
        done.set()

    wait_until(lambda: not made.call_at(clock.now(), start_both) or done.wait(30))
    assert masks[:2] == [0, 0]


async def test_a_hook_may_be_signalled_whichever_thread_called_it():
    masks = []

    async def agent():
        for _ in range(2):  # the control thread starts another thread for a hook that waits behind a slow one
            stoppable.on_stop(lambda: (masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])), time.sleep(0.2)))
        await asyncio.sleep(60)

    handle = await stoppable.spawn(agent)
    await asyncio.sleep(0)
    await handle.stop("immediate")
    await handle.outcome()
    async with asyncio.timeout(30):
        while len(masks) < 2:
            await asyncio.sleep(0.001)
    assert masks == [set(), set()]


@pytest.fixture
def stalled():
    """A control whose thread waits for something that never comes; the event lets it go on."""
    made, entered, go_on = ControlThread(), threading.Event(), threading.Event()

    def hang():
        entered.set()
        go_on.wait(60)

    made.call_at(clock.now(), hang)
    assert entered.wait(60)
    yield made, go_on
    go_on.set()


def test_another_thread_takes_over_and_the_log_says_where_the_stalled_one_is(stalled, caplog):
    made, go_on = stalled
    first, fired = made._thread, threading.Event()
    made.call_at(clock.now(), fired.set)
    with caplog.at_level(logging.CRITICAL, "stoppable"):
        for _ in range(control._MISSES + 1):
            assert not fired.is_set()
            made.check()
        assert fired.wait(30)
        record = wait_until(lambda: caplog.records and caplog.records[0])
    assert "in hang" in record.getMessage()
    entered, leave, fired_by = threading.Event(), threading.Event(), []
    made.call_at(clock.now(), lambda: (entered.set(), leave.wait(30)))
    assert entered.wait(30)
    made.call_at(clock.now(), lambda: fired_by.append(threading.current_thread()))
    go_on.set()
    first.join(30)
    assert not first.is_alive()
    assert fired_by == [], "the timers belong to the new thread"
    leave.set()
    wait_until(lambda: fired_by == [made._thread])


def test_a_thread_that_makes_steps_is_not_replaced():
    made = ControlThread()
    made.ensure_started()
    first = made._thread
    for _ in range(3 * control._MISSES):
        steps = made._steps
        made.check()
        wait_until(lambda steps=steps: made._steps != steps)
    assert made._thread is first


def test_a_dead_thread_is_replaced_at_once():
    made, fired = ControlThread(), threading.Event()
    made._thread = threading.Thread()  # one that will never run
    made.check()
    made.call_at(clock.now(), fired.set)
    assert fired.wait(60)


def test_a_thread_that_cannot_be_replaced_is_kept(stalled, monkeypatch):
    made, _ = stalled
    first = made._thread
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("no more threads")))
    with pytest.raises(RuntimeError):
        for _ in range(control._MISSES + 1):
            made.check()
    assert made._thread is first


def test_a_control_that_was_never_needed_is_fine():
    ControlThread().check()


def test_an_exception_that_other_code_raises_in_the_thread_does_not_end_it(caplog):
    made = ControlThread()
    made.ensure_started()
    thread, fired = made._thread, threading.Event()
    raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    assert raised == 1
    wait_until(lambda: "goes on" in caplog.text)
    made.call_at(clock.now(), fired.set)
    assert fired.wait(60)
    assert made._thread is thread


async def test_a_stop_works_though_the_control_thread_hangs(monkeypatch):
    """Nobody calls anything: the watchdog looks by itself."""
    monkeypatch.setattr(control, "_MISSES", 2)
    entered, go_on = threading.Event(), threading.Event()
    handle = await stoppable.spawn(asyncio.sleep, 60, policy=SHORT)
    control.get().call_at(clock.now(), lambda: (entered.set(), go_on.wait(60)))
    try:
        assert entered.wait(60)
        await handle.stop()
        async with asyncio.timeout(30):
            assert (await handle.outcome()).status == "stopped"
    finally:
        go_on.set()


def test_a_watchdog_goes_on_after_an_error(monkeypatch, caplog):
    class Broken(ControlThread):
        def check(self):
            raise ZeroDivisionError

    control.ensure_started()
    monkeypatch.setattr(control, "_control", Broken())
    wait_until(lambda: "could not be checked" in caplog.text)
