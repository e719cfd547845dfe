"""What is told to the store comes soon, whatever the thread that tells it is doing meanwhile."""

import asyncio
import threading

import pytest
from tests.waiting import until

from stoppable._engine import control
from stoppable.supervisor import log_writer
from stoppable.supervisor.log_writer import CallQueue


async def test_a_call_is_made_though_the_one_before_was_taken_along(monkeypatch):
    """The loop rings for a call that the control thread has made by then; the next call must ring again."""
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)  # ringing is all there is
    queue = CallQueue(lambda: None)
    busy, go_on, made = threading.Event(), threading.Event(), [threading.Event() for _ in range(2)]

    def first():
        busy.set()
        assert go_on.wait(30)

    async with asyncio.timeout(30):
        queue.put(first)
        while not busy.is_set():
            await asyncio.sleep(0.001)
        queue.put(made[0].set)
        go_on.set()
        assert made[0].wait(30), "it was taken along"  # the loop does not turn before, so it rings in vain
        await asyncio.sleep(0.01)
        queue.put(made[1].set)
        while not made[1].is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ZeroDivisionError])
def test_a_call_that_fails_holds_up_no_other(error):
    def fail():
        raise error

    queue, made = CallQueue(lambda: None), threading.Event()
    queue.put_silently(fail)
    queue.put(made.set)
    assert made.wait(30)


async def made(*events):
    async with asyncio.timeout(30):
        while not all(event.is_set() for event in events):
            await asyncio.sleep(0.001)


async def test_calls_that_can_wait_are_made_together_and_nobody_has_to_ring(monkeypatch):
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)
    # So that neither a moment is over nor calls are divided whenever this machine is busy.
    monkeypatch.setattr(log_writer, "_COLLECTED", 1.0)
    monkeypatch.setattr(log_writer, "_SECONDS_AT_ONCE", 60.0)
    wakes = []
    queue = CallQueue(lambda: None)
    flush_soon = CallQueue.flush_soon
    monkeypatch.setattr(CallQueue, "flush_soon", lambda self: (wakes.append(bool(self._calls)), flush_soon(self)))
    first, rest = threading.Event(), [threading.Event() for _ in range(100)]
    queue.put_deferred(first.set)
    await made(first)
    await until(lambda: queue._is_deferring)  # the thread sets it after the call
    for call in rest:
        queue.put_deferred(call.set)
    await made(*rest)
    assert wakes.count(True) <= 2, "the first, and one more if its moment had passed"


async def test_what_can_wait_is_made_before_a_call_that_came_after_it():
    queue, calls, last = CallQueue(lambda: None), [], threading.Event()
    for number in range(5):
        queue.put_deferred(lambda number=number: calls.append(number))
    queue.put(last.set)
    queue.put_deferred(lambda: calls.append("after"))
    await made(last)
    assert calls[:5] == list(range(5))


async def test_what_can_wait_does_not_wait_for_a_loop_that_is_blocked(monkeypatch):
    """The loop was asked to wake the control thread after its turn, and that takes long."""
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)
    queue, begun, told = CallQueue(lambda: None), threading.Event(), threading.Event()
    queue.put(begun.set)
    await made(begun)
    queue.put(lambda: None)
    thread = threading.Thread(target=queue.put_deferred, args=(told.set,))
    thread.start()
    thread.join()
    assert told.wait(30)  # blocks the loop
