"""The queue of store calls of this process: in order, and never made by the code of a run."""

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

_AT_ONCE, _SECONDS_AT_ONCE = 500, 0.004  # calls at once; then ladders and the lease have their turn
_PATIENCE = 0.02  # seconds to wait for the runs' loop, if the stop came from another loop
_COLLECTED = 0.01  # seconds for which deferrable calls wait after the last calls


class Outbox:
    """Calls that a separate thread makes (``control.for_stores``), first come, first served.

    If there is an event loop, the loop wakes the thread after all tasks that are ready: when a stop has woken ten
    thousand bodies, all of them halt before anything is written about the first. A blocked loop delays callers on other
    loops by at most 20 ms, and its own by at most the sleep of the thread for stores.

    Waking a thread for each token of fifty models would cost more than the calls themselves, so deferrable calls are
    made together: the first at once, and then every ten milliseconds while there are more.
    """

    __slots__ = ("_after", "_asked", "_calls", "_has_collected", "_is_collecting", "_is_making", "_is_woken", "_late")

    def __init__(self, after: Callable[[], object]) -> None:
        """Call ``after`` when calls have been made."""
        self._after = after
        self._calls: collections.deque[Callable[[], object]] = collections.deque()
        self._is_collecting = False  # deferrable calls are made within ten milliseconds, even without ring()
        self._has_collected = False  # since the last calls
        self._is_making = False
        self._is_woken = False
        self._asked: asyncio.AbstractEventLoop | None = None  # the loop that wakes the thread for stores after its turn
        self._late: control.Timer | None = None  # when the thread for stores checks the queue, even if it is not woken

    def put(self, call: Callable[[], object]) -> None:
        """Queue a call and wake the thread for stores; from any thread."""
        self.add(call)
        self.ring(asyncio._get_running_loop())

    def collect(self, call: Callable[[], object]) -> None:
        """Queue a call that may wait up to ten milliseconds for others; from any thread."""
        self.add(call)
        self._has_collected = True
        if not self._is_collecting:  # read last: the code that resets it looks for calls afterwards
            self.ring(asyncio._get_running_loop())

    def add(self, call: Callable[[], object]) -> None:
        """Queue a call without waking the thread for stores; ``ring`` does that."""
        self._calls.append(call)

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty, so that a direct call keeps the order."""
        return not (self._calls or self._is_making)

    def ring(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wake the thread for stores: after all tasks that are ready in a loop, or at once."""
        if (
            self._is_woken or self._is_making or not self._calls
        ):  # the thread that makes calls looks for more when it is done
            return
        if loop is None:
            self.wake()
            return
        here = asyncio._get_running_loop()
        if here is loop and self._asked is loop:
            return
        if self._late is None:
            self._late = control.for_stores().call_at(clock.now() + control.TICK_SECONDS, self._make)
        self._asked = loop
        if here is loop:
            loop.call_soon(self.wake)
            return
        with contextlib.suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(loop.call_soon, self.wake)
        if here is not None:
            here.call_later(_PATIENCE, self.wake)

    def wake(self) -> None:
        """Wake the thread for stores now; safe in a signal handler."""
        self._asked = None  # even without calls: the loop must be asked again for the next wake-up
        if self._calls and not (self._is_woken or self._is_making):
            self._is_woken = True
            control.for_stores().call_at(clock.now(), self._make)

    def _make(self) -> None:
        late, self._late = self._late, None
        self._asked, self._is_woken = None, False  # first, so that later calls wake it again
        self._has_collected = False
        if late is not None:
            late.cancel()
        made, until = 0, clock.now() + _SECONDS_AT_ONCE
        self._is_making = True  # before the last call is removed
        while self._calls and made < _AT_ONCE and clock.now() <= until:
            made += 1
            try:
                self._calls.popleft()()
            except BaseException:  # go on with the others
                _logger.exception("a call to the store failed")
        self._is_making = False
        self._after()
        self.wake()  # if there are more
        if made and not self._is_collecting and not control.for_stores().is_driven:
            self._is_collecting = True
            control.for_stores().call_at(clock.now() + _COLLECTED, self._collected)

    def _collected(self, *, is_patient: bool = True) -> None:
        if is_patient and self._asked is not None:  # a loop is about to wake the thread for stores after its turn
            control.for_stores().call_at(clock.now() + _COLLECTED, partial(self._collected, is_patient=False))
            return
        self._is_collecting = False  # first, so that later calls wake it
        if self._has_collected:
            self._make()
