"""The one control thread of a process: a blocked event loop holds up neither a ladder nor a limit."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

from stoppable._core import clock
from stoppable._core.hooks import UserHook

_logger = logging.getLogger("stoppable")


class Timer:
    """A callback that is due at a time; cancelling it twice, or too late, does nothing."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        """Forget the callback."""
        self.callback = None

    def fire(self) -> None:
        """Call it, unless it was cancelled."""
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class Control:
    """Calls what is due, in order, on a thread of its own; ``threaded=False`` leaves that to ``run_due()``."""

    def __init__(self, *, threaded: bool = True) -> None:
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        # put() is reentrant: a signal handler may set a timer while this very thread is setting one.
        self._inbox: queue.SimpleQueue[Timer] = queue.SimpleQueue()
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._is_running_due = False

    def ensure_started(self) -> None:
        """Start the thread, if it has not been."""
        if self._threaded and self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._work, name="stoppable-control", daemon=True)
                    thread.start()
                    self._thread = thread

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` at a time of the clock; from any thread and from a signal handler."""
        timer = Timer(when, callback)
        self._inbox.put(timer)
        self.ensure_started()
        if not self._threaded and when <= clock.now():
            self.run_due()
        return timer

    def call_later_in(self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` on the thread of a loop, which keeps its own time unless a test drives the clock."""
        if not self._threaded:
            return self.call_at(clock.now() + seconds, lambda: loop.call_soon_threadsafe(callback))
        timer = Timer(clock.now() + seconds, callback)
        loop.call_later(seconds, timer.fire)
        return timer

    def next_due(self) -> float | None:
        """Return when the next timer is due."""
        self._collect()
        return self._heap[0][0] if self._heap else None

    def run_due(self) -> None:
        """Call everything that is due by now."""
        if self._is_running_due:  # a callback set a timer that is due at once: the loop below will come to it
            return
        self._is_running_due = True
        try:
            while (due := self.next_due()) is not None and due <= clock.now():
                timer = heapq.heappop(self._heap)[2]
                try:
                    timer.fire()
                except Exception:
                    _logger.exception("the control thread could not do its work")
        finally:
            self._is_running_due = False

    def _collect(self) -> None:
        while True:
            try:
                timer = self._inbox.get_nowait()
            except queue.Empty:
                return
            if timer.callback is not None:
                heapq.heappush(self._heap, (timer.when, next(self._order), timer))

    def _work(self) -> None:
        while True:
            due = self.next_due()
            # With nothing to do it wakes once a minute: every wait has a deadline.
            timeout = 60.0 if due is None else max(0.0, due - clock.now())
            try:
                timer = self._inbox.get(timeout=timeout)
                self._inbox.put(timer)
            except queue.Empty:
                pass
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
    """Put a control in place and return the one that was there."""
    global _control
    previous, _control = _control, control
    return previous


def dispatch(hooks: Sequence[UserHook]) -> None:
    """Call users' hooks on a thread of their own: one that hangs holds up neither the stop nor any ladder."""

    def call_all() -> None:
        for hook in hooks:
            hook.call()

    if _control._threaded:
        threading.Thread(target=call_all, name="stoppable-hooks", daemon=True).start()
    else:
        call_all()


os.register_at_fork(after_in_child=lambda: use(Control()))  # threads do not cross a fork
