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
        assert go_on.wait(10)

    async with asyncio.timeout(10):
        outbox.put(first)
        while not busy.is_set():
            await asyncio.sleep(0.001)
        outbox.put(made[0].set)
        go_on.set()
        assert made[0].wait(5), "it was taken along"  # the loop does not turn before, so it rings in vain
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
    assert made.wait(5)
