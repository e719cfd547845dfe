"""What is told to the store comes soon, whatever the thread that tells it is doing meanwhile."""

import asyncio
import threading

import pytest

from stoppable._engine import control
from stoppable.supervisor.outbox import Outbox


async def test_a_call_is_made_though_the_one_before_was_taken_along(monkeypatch):
    """The loop rings for a call that the control thread has made by then; the next call must ring again."""
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)  # ringing is all there is
    outbox = Outbox(lambda: None)
    busy, go_on, made = threading.Event(), threading.Event(), [threading.Event() for _ in range(2)]

    def first():
        busy.set()
        assert go_on.wait(30)

    async with asyncio.timeout(30):
        outbox.put(first)
        while not busy.is_set():
            await asyncio.sleep(0.001)
        outbox.put(made[0].set)
        go_on.set()
        assert made[0].wait(30), "it was taken along"  # the loop does not turn before, so it rings in vain
        await asyncio.sleep(0.01)
        outbox.put(made[1].set)
        while not made[1].is_set():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ZeroDivisionError])
def test_a_call_that_fails_holds_up_no_other(error):
    def fail():
        raise error

    outbox, made = Outbox(lambda: None), threading.Event()
    outbox.add(fail)
    outbox.put(made.set)
    assert made.wait(30)


async def made(*events):
    async with asyncio.timeout(30):
        while not all(event.is_set() for event in events):
            await asyncio.sleep(0.001)


async def test_calls_that_can_wait_are_made_together_and_nobody_has_to_ring(monkeypatch):
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)
    wakes = []
    outbox = Outbox(lambda: None)
    monkeypatch.setattr(Outbox, "wake", lambda self, wake=Outbox.wake: (wakes.append(bool(self._calls)), wake(self)))
    first, rest = threading.Event(), [threading.Event() for _ in range(100)]
    outbox.collect(first.set)
    await made(first)
    for call in rest:
        outbox.collect(call.set)
    await made(*rest)
    assert wakes.count(True) <= 2, "the first, and one more if its moment had passed"


async def test_what_can_wait_is_made_before_a_call_that_came_after_it():
    outbox, calls, last = Outbox(lambda: None), [], threading.Event()
    for number in range(5):
        outbox.collect(lambda number=number: calls.append(number))
    outbox.put(last.set)
    outbox.collect(lambda: calls.append("after"))
    await made(last)
    assert calls[:5] == list(range(5))


async def test_what_can_wait_does_not_wait_for_a_loop_that_is_blocked(monkeypatch):
    """The loop was asked to wake the control thread after its turn, and that takes long."""
    monkeypatch.setattr(control, "TICK_SECONDS", 3600.0)
    outbox, begun, told = Outbox(lambda: None), threading.Event(), threading.Event()
    outbox.put(begun.set)
    await made(begun)
    outbox.put(lambda: None)
    thread = threading.Thread(target=outbox.collect, args=(told.set,))
    thread.start()
    thread.join()
    assert told.wait(30)  # blocks the loop
