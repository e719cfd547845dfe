"""The control thread of a process, so that a blocked event loop delays neither a ladder nor a limit."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import heapq
import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Sequence

from stoppable._core import clock
from stoppable._core.hooks import Hook

_logger = logging.getLogger("stoppable")


_CROWD = 1024
_PATIENCE_SECONDS = 0.02  # seconds with one hook, before another thread calls the waiting ones
TICK_SECONDS = clock.COARSE_SECONDS
"""The longest sleep of the control thread; timers that were added without waking it are seen by then."""


class Timer:
    """A callback at a time; cancelling it twice, or too late, does nothing."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def collected(self) -> bool:
        """Return whether the timer still has to be scheduled."""
        return self.callback is not None

    def is_cancelled(self) -> bool:
        """Return whether the timer was cancelled or has fired."""
        return self.callback is None

    def cancel(self) -> None:
        """Cancel the timer."""
        self.callback = None

    def fire(self) -> None:
        """Call it, unless it was cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class Control:
    """Fires timers in order on its thread; with ``threaded=False``, ``run_due()`` does.

    The thread is woken only for timers that are due before it would wake anyway. A stop whose first rung is seconds
    away does not wake it, and if the run has ended by the time the thread wakes, the ladder has cost almost nothing.
    """

    def __init__(self, *, threaded: bool = True) -> None:
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        # Both are reentrant: a signal handler may set a timer while its thread is setting one.
        self._inbox: collections.deque[Timer] = collections.deque()
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._wakes_at = math.inf  # infinite while the thread looks for timers, so that every new timer rings
        self._heap: list[tuple[float, int, Timer]] = []
        self._crowd = _CROWD
        self._order = itertools.count()
        self._is_running_due = False

    @property
    def is_driven(self) -> bool:
        """Whether a test drives the clock with ``run_due()``; then nothing is deferred."""
        return not self._threaded

    def ensure_started(self) -> None:
        """Start the thread, unless it runs."""
        if self._threaded and self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="stoppable-control", daemon=True)
                    thread.start()
                    self._thread = thread

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` at a time of the clock; from any thread and from a signal handler."""
        timer = Timer(when, callback)
        self.add(timer)
        return timer

    def add(self, timer: Timer) -> None:
        """Fire a timer when it is due; from any thread and from a signal handler."""
        self._inbox.append(timer)
        if not self._threaded:
            if timer.when <= clock.now():
                self.run_due()
        elif timer.when < self._wakes_at:
            # Added first, checked afterwards: a thread that is already being woken will see this timer too.
            if self._bell.empty():
                self._bell.put(None)
            self.ensure_started()

    def call_later_in(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[..., object], *args: object
    ) -> Timer | asyncio.TimerHandle:
        """Call ``callback`` on the thread of a loop, with the loop's own timer unless a test drives the clock."""
        if self._threaded:
            return loop.call_later(seconds, callback, *args)
        return self.call_at(clock.now() + seconds, lambda: loop.call_soon_threadsafe(callback, *args))

    def next_due(self) -> float | None:
        """Return when the next timer is due."""
        self._collect()
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Fire all timers that are due."""
        if self._is_running_due:  # a callback set a timer that is due at once: the loop below will fire it
            return
        self._is_running_due = True
        clock.coarse.update()
        try:
            while (due := self.next_due()) is not None and due <= clock.now():
                timer = heapq.heappop(self._heap)[2]
                try:
                    timer.fire()
                except BaseException:  # any error: no stop would work without this thread
                    _logger.exception("a callback of the control thread failed")
        finally:
            self._is_running_due = False

    def _collect(self) -> None:
        while self._inbox:
            timer = self._inbox.popleft()
            if timer.collected():
                heapq.heappush(self._heap, (timer.when, next(self._order), timer))
                if len(self._heap) > self._crowd:
                    self._let_go()

    def _let_go(self) -> None:
        """Drop cancelled timers: a limit may be hours away, although its run has ended."""
        self._heap = [entry for entry in self._heap if not entry[2].is_cancelled()]
        heapq.heapify(self._heap)
        self._crowd = max(_CROWD, 2 * len(self._heap))

    def _work(self) -> None:
        while True:
            self._wakes_at = math.inf
            due = self.next_due()
            tick = clock.now() + TICK_SECONDS
            self._wakes_at = tick if due is None else min(due, tick)
            with contextlib.suppress(queue.Empty):
                self._bell.get(timeout=max(0.0, self._wakes_at - clock.now()))
            self.run_due()


_control = Control()


def get() -> Control:
    """Return the control of this process."""
    return _control


def ensure_started() -> None:
    """Start the thread of this process; called when a run begins, so that a signal handler never has to."""
    if _control._thread is None:
        _control.ensure_started()


def use(control: Control) -> Control:
    """Replace the control of this process and return the previous one."""
    global _control
    previous, _control = _control, control
    return previous


def dispatch(hooks: Sequence[Hook]) -> None:
    """Call users' hooks on separate threads, so that one that hangs delays no stop, ladder or other hook."""
    if _control._threaded:
        _Crew(hooks).grow()
    else:
        for hook in hooks:
            hook.call()


class _Crew:
    """Threads that call the hooks of one stop: one while it makes progress, more whenever none does.

    A thread for each of thousands of hooks would starve all other threads for seconds.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = collections.deque(hooks)
        self._threads = 0
        self._left = -1

    def grow(self) -> None:
        """Double the threads unless there was progress since the last call; from any thread and a signal handler."""
        left = len(self._hooks)
        if left != self._left:
            self._left = left
            more = 0 if self._threads else 1
        else:
            more = min(left, self._threads or 1)
        with contextlib.suppress(RuntimeError):  # the system has no more threads: the existing ones go on
            for _ in range(more):
                threading.Thread(target=self._call_all, name="stoppable-hooks", daemon=True).start()
                self._threads += 1
        if left > 1 or not self._threads:
            get().call_at(clock.now() + _PATIENCE_SECONDS, self.grow)

    def _call_all(self) -> None:
        while True:
            try:
                hook = self._hooks.popleft()
            except IndexError:
                return  # other threads have taken the rest
            hook.call()


os.register_at_fork(after_in_child=lambda: use(Control()))  # threads do not cross a fork
