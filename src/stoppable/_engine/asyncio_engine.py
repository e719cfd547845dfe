"""The engine of this process: what the core asks of tasks, threads and the control thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from asyncio import AbstractEventLoop, Task, _get_running_loop
from collections.abc import Callable
from typing import Any

from stoppable._core import participants
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._engine import control, ladder, tasks, threads, waits
from stoppable._engine.instrumentation.threads import library_threads_in
from stoppable.errors import InvalidArgument

_logger = logging.getLogger("stoppable")

_running: set[Task[None]] = set()  # asyncio itself keeps only a weak reference to a task


def _bind_to_loop(function: Callable[..., Any]) -> Callable[..., object]:
    """Return a plain function that runs an async one on the event loop of the caller."""
    loop = asyncio._get_running_loop()
    if loop is None:
        raise InvalidArgument(
            f"{function!r} is async and no event loop is running: pass a plain function, which is called on a "
            "separate thread"
        )

    def call(*args: object) -> None:
        try:
            loop.call_soon_threadsafe(_start, loop, function, args)
        except RuntimeError:
            _logger.warning("the hook %r was not called: its event loop is closed", function)

    return call


def _start(loop: AbstractEventLoop, function: Callable[..., Any], args: tuple[object, ...]) -> None:
    task = loop.create_task(_run_logged(function, args), name="stoppable-hook")
    _running.add(task)
    task.add_done_callback(_running.discard)


async def _run_logged(function: Callable[..., Any], args: tuple[object, ...]) -> None:
    try:
        await function(*args)
    except Exception:
        _logger.exception("the hook %r failed", function)


class AsyncioEngine:
    """Tasks of asyncio, threads and processes."""

    cancels: tuple[type[BaseException], ...] = (asyncio.CancelledError,)
    climb = staticmethod(ladder.climb)
    current = staticmethod(tasks.current)
    current_task = staticmethod(tasks.current_task)
    dispatch = staticmethod(control.dispatch)
    hold_back = staticmethod(waits.hold_back)
    in_loop = staticmethod(_bind_to_loop)
    library_threads = staticmethod(library_threads_in)

    @staticmethod
    def join(run: RunNode) -> Participant | None:
        """Return the participant that executes the calling code; a task joins the run if it has not yet."""
        main = run.main
        # The usual case, without asking for the running loop, which is a system call before 3.12.
        if main is not None and main.thread._is_owned() and main.task is tasks.current_task(main.loop):
            return main
        loop = _get_running_loop()
        if loop is None:
            return threads.current()
        participant = tasks.current_in(loop)
        if participant is not None and participant not in (run.members or ()):
            if threads.is_visiting(run, loop):
                return threads.current()  # the task may be anybody's, and would be cancelled with the run (G9)
            participant.join(run)
        return participant

    @staticmethod
    def attend(run: RunNode) -> None:
        """Make the task or thread that executes the calling code a participant, until it leaves that code."""
        if not isinstance(AsyncioEngine.join(run), tasks.TaskParticipant):
            threads.attend(run)

    @staticmethod
    def is_worker_thread() -> bool:
        """Return whether runs are live but this thread belongs to none of them."""
        if _get_running_loop() is not None or threading.current_thread() is threading.main_thread():
            return False
        return any(participant.alive() for participant in list(participants.executing.values()))
