"""What this process has to tell the store about its runs, in order, and never in the step of one of them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from stoppable._core import clock
from stoppable._engine import control

_logger = logging.getLogger("stoppable")

_AT_ONCE = 500  # then ladders and the lease have their turn
_PATIENCE = 0.02  # seconds for the loop of the runs, where a stop came from another one
_COLLECTED = 0.01  # seconds after calls were made in which those that can wait do


class Outbox:
    """Calls that the control thread makes, first come, first served.

    The thread is woken by way of an event loop if there is one, after every task that is ready there: when a stop has
    woken ten thousand bodies, all of them have halted before anything is written about the first. A loop that is
    blocked holds up nobody who waits elsewhere for longer than a moment, and its own for no longer than the control
    thread sleeps.

    To wake a thread for each token of fifty models would cost more than all that it does, so calls that can wait a
    moment are made together: the first at once, and as long as there are more, every ten milliseconds.
    """

    __slots__ = ("_after", "_asked", "_calls", "_has_collected", "_is_collecting", "_is_making", "_is_woken", "_late")

    def __init__(self, after: Callable[[], object]) -> None:
        """Call ``after`` when calls have been made."""
        self._after = after
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._is_collecting = False  # calls that can wait are made within a moment, whether somebody rings or not
        self._has_collected = False  # since the last were made
        self._is_making = False
        self._is_woken = False
        self._asked: asyncio.AbstractEventLoop | None = None  # the loop that wakes us after its turn
        self._late: control.Timer | None = None  # when the control thread looks by itself

    def put(self, call: Callable[[], object]) -> None:
        """Have a call made, after those that wait; from any thread."""
        self.add(call)
        self.ring(asyncio._get_running_loop())

    def collect(self, call: Callable[[], object]) -> None:
        """Have a call made with others, after those that wait, within a moment; from any thread."""
        self.add(call)
        self._has_collected = True
        if not self._is_collecting:  # looked at last: whoever ends it looks for calls afterwards
            self.ring(asyncio._get_running_loop())

    def add(self, call: Callable[[], object]) -> None:
        """Have a call made once somebody rings."""
        self._calls.append(call)

    @property
    def is_idle(self) -> bool:
        """Whether a call that is made here and now comes after all that were to be made."""
        return not (self._calls or self._is_making)

    def ring(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Have the calls made: after all that is ready in a loop, or at once."""
        if self._is_woken or self._is_making or not self._calls:  # whoever makes calls looks for more when it is done
            return
        if loop is None:
            self.wake()
            return
        here = asyncio._get_running_loop()
        if here is loop and self._asked is loop:
            return
        if self._late is None:
            self._late = control.get().call_at(clock.now() + control.TICK_SECONDS, self._make)
        self._asked = loop
        if here is loop:
            loop.call_soon(self.wake)
            return
        with contextlib.suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(loop.call_soon, self.wake)
        if here is not None:
            here.call_later(_PATIENCE, self.wake)

    def wake(self) -> None:
        """Have the calls made now; from a signal handler too."""
        self._asked = None  # also if they have been made: a loop is asked once for each time that it does this
        if self._calls and not (self._is_woken or self._is_making):
            self._is_woken = True
            control.get().call_at(clock.now(), self._make)

    def _make(self) -> None:
        late, self._late = self._late, None
        self._asked, self._is_woken = None, False  # first: what comes from here on rings again
        self._has_collected = False
        if late is not None:
            late.cancel()
        made = 0
        self._is_making = True  # before the last call is taken out
        while self._calls and made < _AT_ONCE:
            made += 1
            try:
                self._calls.popleft()()
            except BaseException:  # the others have something to tell too
                _logger.exception("writing to the store failed")
        self._is_making = False
        self._after()
        self.wake()  # if there is more
        if made and not self._is_collecting and not control.get().is_driven:
            self._is_collecting = True
            control.get().call_at(clock.now() + _COLLECTED, self._collected)

    def _collected(self, *, is_patient: bool = True) -> None:
        if is_patient and self._asked is not None:  # a loop is about to wake us after its turn
            control.get().call_at(clock.now() + _COLLECTED, partial(self._collected, is_patient=False))
            return
        self._is_collecting = False  # first: what comes from here on rings
        if self._has_collected:
            self._make()
