"""Passes stops on to a remote: calls the user's function once for each mode, and retries until a call succeeds."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from asyncio import AbstractEventLoop, CancelledError, Task
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from stoppable._core import clock, context
from stoppable._core.callables import code_of
from stoppable._core.gate import lock
from stoppable._core.node import RunNode
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode
from stoppable._core.stop import Stop
from stoppable._engine import control
from stoppable._engine.threads import pool
from stoppable.errors import InvalidArgument

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_NO_END = (Fate.ABANDONED, Fate.UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStop:
    """A stop to pass on to another service; ``grace`` is the number of seconds left, None without a limit."""

    mode: Mode
    reason: Reason
    grace: float | None


Tell: TypeAlias = Callable[[RemoteStop], Awaitable[str | None] | str | None]
"""Passes a stop on to a remote; see ``remote``."""


class Line:
    """The connection to one remote. Its methods never wait: calls run on the loop or on threads."""

    __slots__ = (
        "_asked",
        "_context",
        "_ended",
        "_is_closed",
        "_is_only_way",
        "_loop",
        "_pause",
        "_run",
        "_stops",
        "_tasks",
        "_tell",
        "_told",
        "_wanted",
        "is_open",
    )

    def __init__(self, run: RunNode, tell: Tell, ended: Callable[[Fate], None], *, is_open: bool) -> None:
        self._run = run
        self._tell: Callable[[RemoteStop], Any] = tell
        self._ended = ended
        self.is_open: bool = is_open  # the address of the remote is known
        self._is_closed = False
        self._is_only_way = False  # its block was left, so only calls of tell can report the end
        self._loop: AbstractEventLoop | None = asyncio._get_running_loop()
        self._context = contextvars.copy_context()
        self._context.run(context.current.set, context.DETACHED)  # calls go on after the gate of the run is closed
        self._tasks: set[Task[None]] = set()
        self._stops: list[Stop] = []  # not acknowledged
        self._wanted: Mode | None = None
        self._asked: set[Mode] = set()  # modes for which a call was made or is in progress
        self._told: Mode | None = None
        self._pause = _FIRST_PAUSE

    @property
    def is_told(self) -> bool:
        """Whether the remote is known to have received a stop."""
        return self._told is not None

    def note_told(self) -> None:
        """Record that the remote has received the stop."""
        with lock:
            self._told = self._told or self._wanted

    def pass_on(self, stop: Stop) -> None:
        """Pass a stop on, and acknowledge it after that; from any thread and from a signal handler."""
        with lock:
            self._stops.append(stop)
        control.get().call_at(clock.now(), partial(self.want, stop.mode))

    def want(self, mode: Mode) -> None:
        """Pass a mode on, unless the same or a harder one was passed on or is about to be."""
        with lock:
            if self._wanted is None or self._wanted < mode:
                self._wanted = mode
        self._advance()

    def open(self) -> None:
        """Record that the address of the remote is known, and pass on the stop that waited for it."""
        self.is_open = True
        self._advance()

    def listen(self) -> None:
        """Repeat the call from now on, because nothing else reports the end any more."""
        with lock:
            self._is_only_way = True
            mode = self._told
        if mode is not None:
            self._ask_again(mode)

    def close(self) -> None:
        """Make no more calls: the remote work has ended, or was given up."""
        with lock:
            self._is_closed = True
            stops = self._take_stops(Mode.KILL) if self._run.outcome is None else []
        for stop in stops:
            stop.acknowledge()
        if self._loop is not None and self._tasks and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel_calls)

    def _cancel_calls(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _advance(self) -> None:
        with lock:
            mode = self._wanted
            if mode is None or not self.is_open or self._is_closed or mode in self._asked:
                return
            self._asked.add(mode)
        order = RemoteStop(mode=mode, reason=self._run.token.reason or Reason(), grace=self._grace_left(mode))
        if self._loop is None or not inspect.iscoroutinefunction(code_of(self._tell)):
            called = self._context.copy()  # a context can be entered by one thread at a time
            pool.submit(lambda: called.run(self._call, order))
            return
        try:
            self._loop.call_soon_threadsafe(self._start, order, context=self._context)
        except RuntimeError as error:  # the loop was closed
            self._failed(mode, error)

    def _grace_left(self, mode: Mode) -> float | None:
        """Return the seconds until INTERRUPT, by the stop that leaves the least time."""
        left = []
        for stop in self._run.stops():
            if stop.mode is mode:
                first = next(iter(stop.schedule()), None)
                left += [] if first is None else [max(0.0, stop.requested_at + first[1] - clock.now())]
        if left:
            return min(left)
        return None if mode is Mode.COOPERATIVE else 0.0

    # One call

    def _start(self, order: RemoteStop, answer: Any = None) -> None:
        assert self._loop is not None, "called on the loop"
        if self._is_closed:  # since this was scheduled: the code that saw the end may have closed the client
            if inspect.iscoroutine(answer):
                answer.close()
            return
        task = self._loop.create_task(self._call_async(order, answer), name=f"stoppable tells {self._run.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call_async(self, order: RemoteStop, answer: Any) -> None:
        try:
            end = end_of(await (answer or self._tell(order)))
        except CancelledError as gone:  # the remote work has ended, or the loop is closing
            self._failed(order.mode, gone)
            raise
        except Exception as error:
            self._failed(order.mode, error)
        else:
            self._answered(order.mode, end)

    def _call(self, order: RemoteStop) -> None:
        try:
            answer: Any = self._tell(order)
            if self._loop is not None and inspect.isawaitable(answer):  # from a lambda around an async function
                self._loop.call_soon_threadsafe(self._start, order, answer, context=self._context)
                return
            end = end_of(answer)
        except BaseException as error:  # on this thread, no other code could handle it
            self._failed(order.mode, error)
        else:
            self._answered(order.mode, end)

    def _answered(self, mode: Mode, end: Fate | None) -> None:
        with lock:
            if self._told is None or self._told < mode:
                self._told = mode
            stops = self._take_stops(mode)
        for stop in stops:
            stop.acknowledge()
        self._note(mode, end or "told")
        if end is not None:
            self._ended(end)
        elif self._is_only_way:
            self._ask_again(mode)

    def _take_stops(self, mode: Mode) -> list[Stop]:
        taken = [stop for stop in self._stops if stop.mode <= mode]
        self._stops = [stop for stop in self._stops if stop.mode > mode]
        return taken

    def _failed(self, mode: Mode, error: BaseException) -> None:
        if self._is_closed:
            return
        self._note(mode, f"{type(error).__name__}: {error}")
        if not (isinstance(error, CancelledError) or (self._loop is not None and self._loop.is_closed())):
            self._ask_again(mode)

    def _ask_again(self, mode: Mode) -> None:
        with lock:
            self._asked.discard(mode)
            pause, self._pause = self._pause, min(self._pause * 2, _LONGEST_PAUSE)
        control.get().call_at(clock.now() + pause, self._advance)

    def _note(self, mode: Mode, answer: str) -> None:
        if self._run.sink is not None:
            self._run.sink.event(self._run, "remote", {"mode": mode.value, "answer": answer})


def end_of(fate: str | None) -> Fate | None:
    """Return how remote work ended, from the name of its fate; None if it has not ended."""
    if fate is None:
        return None
    if fate not in _ENDS:
        raise InvalidArgument(f"{fate!r:.40} is not a fate of remote work: use {', '.join(_ENDS)}")
    return Fate(fate)


_ENDS = tuple(fate for fate in Fate if fate not in _NO_END)
