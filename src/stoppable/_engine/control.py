"""The control thread of a process: its timers, and whether threads and event loops can act on a stop.

A blocked event loop delays neither a ladder nor a limit: they are fired by the control thread.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # pyright: ignore[reportMissingModuleSource]
import asyncio
import atexit
import collections
import contextlib
import functools
import heapq
import itertools
import logging
import math
import os
import signal
import threading
import time
import traceback
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from stoppable._core import clock
from stoppable._core.hooks import Hook, stops_under_way
from stoppable._engine.source_lines import stacks_of_threads

T = TypeVar("T")

_LOOK_SECONDS = 60.0


class Alarm:
    """Wakes the one thread that waits on it; rings that nobody waited for count once.

    A lock that is free while it rings. Unlike ``threading.Event`` it is re-entrant: a signal handler may ring on the
    thread that waits. Unlike ``SimpleQueue.get``, which before 3.13 waits for ever if a signal arrives at its deadline,
    a lock keeps its deadline.
    """

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the thread, now or when it waits next; from any thread and from a signal handler."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silence.release()

    @property
    def is_ringing(self) -> bool:
        """Whether the next wait returns at once."""
        return not self._silence.locked()

    def wait(self, seconds: float = _LOOK_SECONDS) -> bool:
        """Wait until it rings; return False after a minute, or the given time, without a ring."""
        return self._silence.acquire(timeout=max(0.0, seconds))


class Bell:
    """Wakes tasks of any loop and threads that wait for a condition which another thread changes."""

    __slots__ = ("_wakers",)

    def __init__(self) -> None:
        self._wakers: dict[object, Callable[[], object]] = {}

    def ring(self) -> None:
        """Make all waiters check their condition again."""
        if self._wakers:
            for wake in list(self._wakers.values()):
                wake()

    async def wait(self, ready: Callable[[], bool], *, blocking: bool) -> None:
        """Wait until a condition is true; ``blocking`` waits on the calling thread."""
        while not ready():
            waiter: asyncio.Future[None] | Alarm
            if blocking:
                waiter = Alarm()
                self._wakers[waiter] = waiter.ring
            else:
                waiter = asyncio.get_running_loop().create_future()
                self._wakers[waiter] = functools.partial(_wake, waiter)
            try:
                # Registered first, checked afterwards, so that no change is missed in between.
                if ready():
                    return
                if isinstance(waiter, Alarm):
                    waiter.wait()
                else:
                    await waiter
            finally:
                del self._wakers[waiter]


def _wake(future: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is future.get_loop():
        _resolve(future)
        return
    with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
        future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def run_in_place(steps: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        steps.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("a blocking coroutine never suspends")


LATE_SECONDS = 0.05
"""What is answered later than that was held up."""
_TIMES_KEPT = 1000

Times = collections.deque[tuple[float, float]]
"""Times, from and until, at which something could not run; the oldest are dropped."""


def new_times() -> Times:
    """Return an empty list of times."""
    return collections.deque(maxlen=_TIMES_KEPT)


def covered_seconds(times: Iterable[tuple[float, float]], since: float) -> float:
    """Return how many seconds since a moment are covered by times, which may overlap."""
    total, end = 0.0, since
    for begin, until in sorted(times):
        total += max(0.0, until - max(begin, end))
        end = max(end, until)
    return total


class Pulse:
    """Pings one event loop: one ping at a time, sent by the control thread and answered by the loop.

    A loop that was held up for one turn may have more such turns ahead. It then pings itself, until it turns quickly or
    the control thread is no longer interested: otherwise the time between two pings would count.
    """

    __slots__ = ("_loop", "_sent_at", "_stalls", "_wanted_until", "turned_at")

    def __init__(self, loop: AbstractEventLoop) -> None:
        key, forget = id(loop), _pulses.pop  # bound now: a loop may outlive the names of this module
        self._loop = weakref.ref(loop, lambda _: forget(key, None))
        self._stalls = new_times()
        self._sent_at: float | None = None  # of the ping that was not answered
        self._wanted_until = -math.inf
        self.turned_at: float = -math.inf
        """When the last answered ping was sent: whatever was queued in the loop before that has been called."""

    def ping(self) -> None:
        """Send a ping, unless one is on its way."""
        loop = self._loop()
        if loop is None or self._sent_at is not None:
            return
        self._sent_at = clock.now()
        try:
            loop.call_soon_threadsafe(self._answer)
        except RuntimeError:  # it was closed: nothing has to act there any more
            self._sent_at, self.turned_at = None, math.inf

    def _answer(self) -> None:
        sent_at, now, loop = self._sent_at, clock.now(), self._loop()
        assert sent_at is not None, "one ping, one answer"
        assert loop is not None, "it calls this"
        is_late = now - sent_at > LATE_SECONDS
        if is_late:
            self._stalls.append((sent_at, now))
        self.turned_at = sent_at
        # Last: a stall that is read in between counts twice for a moment, but never not at all.
        if is_late and now < self._wanted_until:
            self._sent_at = now
            loop.call_soon(self._answer)
        else:
            self._sent_at = None

    def beat(self, pause: float) -> None:
        """Send a ping, unless the last one was sent within so many seconds; to be called about as often."""
        now = clock.now()
        self._wanted_until = now + 2 * pause
        if self.turned_at <= now - pause:
            self.ping()

    def stalls(self) -> Iterator[tuple[float, float]]:
        """Yield the times at which the loop did not turn."""
        sent_at, now = self._sent_at, clock.now()
        yield from list(self._stalls)
        if sent_at is not None and now - sent_at > LATE_SECONDS:
            yield sent_at, now

    def is_steady(self, since: float) -> bool:
        """Return whether the loop has turned since a moment, and was never held up."""
        return self.turned_at >= since and not any(until > since for _, until in self.stalls())


_pulses: dict[int, Pulse] = {}
os.register_at_fork(after_in_child=_pulses.clear)


def follow_loop(loop: AbstractEventLoop) -> None:
    """Include a loop that executes runs."""
    if id(loop) not in _pulses:
        _pulses[id(loop)] = Pulse(loop)


def pulse_of(loop: AbstractEventLoop) -> Pulse | None:
    """Return the pulse of a loop."""
    return _pulses.get(id(loop))


def all_pulses() -> list[Pulse]:
    """Return the pulses of all loops that execute runs."""
    return list(_pulses.values())


def _beat(pause: float) -> None:
    """Ping the loops that were not pinged within the last seconds."""
    for pulse in all_pulses():
        pulse.beat(pause)


_logger = logging.getLogger("stoppable")


_CROWD = 1024
_PATIENCE_SECONDS = 0.02  # seconds with one hook, before another thread calls the waiting ones
_HOOKS_SECONDS = 1.0  # for hooks that are due when the process ends
_HOOKS_LOOK_SECONDS = 0.002
_HOOKS_THREAD = "stoppable-hooks"
TICK_SECONDS = clock.COARSE_SECONDS
"""The longest sleep of the control thread; timers that were added without waking it are seen by then."""
_CHECK_SECONDS = 1.0
_MISSES = 5  # checks without a step of the thread, after which another one takes over


class Timer:
    """A callback at a time; cancelling it twice, or too late, does nothing."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], object]) -> None:
        self.when = when
        self.callback: Callable[[], object] | None = callback

    def must_be_scheduled(self) -> bool:
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


class ControlThread:
    """Fires timers in order on its thread; with ``threaded=False``, ``run_due()`` does.

    The thread is woken only for timers that are due before it would wake anyway. A stop whose first rung is seconds
    away does not wake it, and if the run has ended by the time the thread wakes, the ladder has cost almost nothing.
    """

    def __init__(self, name: str = "stoppable-control", *, threaded: bool = True) -> None:
        self._name = name
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()
        # Both are reentrant: a signal handler may set a timer while its thread is setting one.
        self._inbox: collections.deque[Timer] = collections.deque()
        self._bell = Alarm()
        self._wakes_at = math.inf  # infinite while the thread looks for timers, so that every new timer rings
        self._heap: list[tuple[float, int, Timer]] = []
        self._crowd = _CROWD
        self._order = itertools.count()
        self._is_running_due = False
        self._steps = 0  # grows while the thread works
        self._steps_seen = 0
        self._misses = 0
        self.starved: Times = new_times()
        """Times at which the thread was kept from running, as every other thread probably was."""
        # The time, and that of the processor, at the end of the last wait or step. This is what the process did, so it
        # is measured by the real clock: the times that a test makes would delay later stops.
        self._last_note = 0.0, 0.0
        self.waiting: set[Timer] = set()
        """The timers that wait for code to act: while there are any, event loops are pinged."""

    @property
    def is_driven(self) -> bool:
        """Whether a test drives the clock with ``run_due()``; then nothing is deferred."""
        return not self._threaded

    def ensure_started(self) -> None:
        """Start the thread, unless it runs."""
        if self._threaded and self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._start()
                    _ensure_watched()

    def _start(self) -> None:
        """Start a thread that fires the timers from now on; a previous one leaves them alone."""
        previous = self._thread
        self._thread = thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except BaseException:
            self._thread = previous
            raise

    def check(self) -> None:
        """Let another thread take over if the thread is dead, or has made no step between several calls of this.

        Calls count, and not time: a process that was suspended, or could not run, is not stalled.
        """
        with self._starting:
            thread = self._thread
            if thread is None:
                return
            is_alive = thread.is_alive()
            self._misses = 0 if self._steps != self._steps_seen else self._misses + 1
            self._steps_seen = self._steps
            if is_alive and self._misses < _MISSES:
                return
            self._misses = 0
            frame = stacks_of_threads().get(thread.ident or 0)
            stack = "".join(traceback.format_stack(frame)) if is_alive else "it is dead\n"
            self._start()
        # On a separate thread: writing to the log may be what the stalled one waits for.
        message = "the thread %s was stalled; another one takes over. It was here:\n%s"
        args = message, self._name, stack
        threading.Thread(target=_logger.critical, args=args, name="stoppable-report", daemon=True).start()

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
            self._bell.ring()
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
        clock.coarse.now = clock.now()
        try:
            self._fire_due(None)
        finally:
            self._is_running_due = False

    def _fire_due(self, thread: threading.Thread | None) -> None:
        # Asked before every timer: while one was fired, another thread may have taken over.
        while self._thread is thread and (due := self.next_due()) is not None and due <= clock.now():
            self._steps += 1
            if thread is not None:
                self._note_delay()  # before it is fired: a ladder does not count the time in which it could not run
            timer = heapq.heappop(self._heap)[2]
            try:
                timer.fire()
            except BaseException:  # any error: no stop would work without this thread
                _logger.exception("a callback of the control thread failed")

    def _collect(self) -> None:
        while self._inbox:
            timer = self._inbox.popleft()
            if timer.must_be_scheduled():
                heapq.heappush(self._heap, (timer.when, next(self._order), timer))
                if len(self._heap) > self._crowd:
                    self._let_go()

    def _let_go(self) -> None:
        """Drop cancelled timers: a limit may be hours away, although its run has ended."""
        self._heap = [entry for entry in self._heap if not entry[2].is_cancelled()]
        heapq.heapify(self._heap)
        self._crowd = max(_CROWD, 2 * len(self._heap))

    def _work(self) -> None:
        thread = threading.current_thread()
        self._last_note = time.monotonic(), time.thread_time()
        while self._thread is thread:
            try:
                self._steps += 1
                clock.coarse.now = clock.now()
                self._wakes_at = math.inf
                due = self.next_due()
                if self.waiting:
                    _beat(TICK_SECONDS)
                self._note_delay()
                now = clock.now()
                self._wakes_at = now + TICK_SECONDS if due is None else min(due, now + TICK_SECONDS)
                self._sleep(max(now, self._wakes_at))
                self._fire_due(thread)
            except BaseException:  # raised into this thread from outside, for example
                _logger.exception("the control thread goes on")

    def _sleep(self, until: float) -> None:
        # Signals are left to other threads, but only during the wait: threads and processes inherit what is blocked,
        # and callbacks may start some.
        seconds = min(until - clock.now(), TICK_SECONDS)  # a test may replace the clock meanwhile
        due_at = time.monotonic() + seconds
        blocked = _block_signals()
        try:
            self._bell.wait(seconds)
        finally:
            _restore_signals(blocked)
        now = time.monotonic()
        self._last_note = now, time.thread_time()
        if now - due_at > LATE_SECONDS:
            self.starved.append((due_at, now))

    def _note_delay(self) -> None:
        """Note for how long the thread, whose callbacks never wait, was kept from working since the last note."""
        now, worked = time.monotonic(), time.thread_time()
        delay = now - self._last_note[0] - (worked - self._last_note[1])
        self._last_note = now, worked
        if delay > LATE_SECONDS:
            self.starved.append((now - delay, now))


# Of the C module: the public function makes an enum member of each of sixty signals, which takes half a millisecond.
_sigmask = getattr(_signal, "pthread_sigmask", None)
# Those are about the thread itself, and a handler (faulthandler) must still be called for them.
_FAULTS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
_OTHERS = [int(each) for each in signal.valid_signals() if getattr(each, "name", "") not in _FAULTS]


def _block_signals() -> Any:
    return () if _sigmask is None else _sigmask(signal.SIG_BLOCK, _OTHERS)


def _restore_signals(blocked: Any) -> None:
    if _sigmask is not None:
        _sigmask(signal.SIG_SETMASK, blocked)


_control = ControlThread()
_store_control = ControlThread("stoppable-control-stores")


def get() -> ControlThread:
    """Return the control of this process: for callbacks that take a few milliseconds at most."""
    return _control


def for_stores() -> ControlThread:
    """Return the control for what a supervisor does: calls of its store may take long if a tree is large.

    If a test drives the clock, there is only one.
    """
    return _control if _control.is_driven else _store_control


def ensure_started() -> None:
    """Start the thread of this process; called when a run begins, so that a signal handler never has to."""
    if _control._thread is None:
        _control.ensure_started()


_watchdog: threading.Thread | None = None


def _ensure_watched() -> None:
    global _watchdog
    if _watchdog is None:
        _watchdog = threading.Thread(target=_watch, name="stoppable-watchdog", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system has no more threads: the run begins all the same
            _watchdog.start()


def _watch() -> None:
    """Check the threads every second: a ladder that waits for it would wait in vain, and nobody would say so."""
    alarm = Alarm()
    while True:
        try:
            alarm.wait(_CHECK_SECONDS)
            _control.check()
            _store_control.check()
        except BaseException:
            _logger.exception("the control thread could not be checked")


def use(control: ControlThread) -> ControlThread:
    """Replace the control of this process and return the previous one."""
    global _control
    previous, _control = _control, control
    return previous


def dispatch(hooks: Sequence[Hook]) -> None:
    """Call users' hooks on separate threads, so that one that hangs delays no stop, ladder or other hook."""
    if _control._threaded:
        _due_hooks.update(dict.fromkeys(hooks, True))
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
        left, is_first = len(self._hooks), not self._threads
        if left != self._left:
            self._left = left
            more = 0 if self._threads else 1
        else:
            more = min(left, self._threads or 1)
        with contextlib.suppress(RuntimeError):  # the system has no more threads: the existing ones go on
            for _ in range(more):
                threading.Thread(target=self._call_all, name=_HOOKS_THREAD, daemon=True).start()
                self._threads += 1
        if left > is_first or not self._threads:  # the first thread takes one; later, even one may wait behind it
            get().call_at(clock.now() + _PATIENCE_SECONDS, self.grow)

    def _call_all(self) -> None:
        while True:
            try:
                hook = self._hooks.popleft()
            except IndexError:
                return  # other threads have taken the rest
            hook.call()
            _due_hooks.pop(hook, None)


_due_hooks: dict[Hook, bool] = {}
"""Hooks that were handed to threads, and have not returned. No lock: a signal handler may stop a run."""


@atexit.register
def wait_for_hooks() -> None:
    """Wait a moment for hooks that are due, also by a stop that is being told: their threads end with the process."""
    until = time.monotonic() + _HOOKS_SECONDS
    pause = Alarm()
    while (stops_under_way or _due_hooks) and time.monotonic() < until:
        pause.wait(_HOOKS_LOOK_SECONDS)


def _start_over() -> None:
    """Start over after a fork, which no thread survives."""
    global _watchdog, _store_control
    _watchdog, _store_control = None, ControlThread(_store_control._name)
    _due_hooks.clear()
    stops_under_way.clear()
    use(ControlThread())


os.register_at_fork(after_in_child=_start_over)
