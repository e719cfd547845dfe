"""Asyncio tasks as participants, the tasks that a run left behind, and whose cancel it is that a task has got."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary
from stoppable._core.participants import Participant
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.run import Run
from stoppable._core.shield import shielded
from stoppable._core.state import Mode, Rung
from stoppable._engine import control, threads
from stoppable._engine.source_lines import lines, place
from stoppable.errors import AgentStopped

_get_running_loop = asyncio._get_running_loop
# Both take the loop; before 3.12 the public one is written in Python and would be a fifth of a boundary's cost.
if sys.version_info >= (3, 12):
    current_task = asyncio.current_task
else:
    current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

OURS = "stopped by stoppable"
"""The message of our own cancels, known by its identity."""

_by_task: dict[Task[Any], TaskParticipant] = {}
_starter: contextvars.ContextVar[weakref.ref[Task[Any]] | None] = contextvars.ContextVar("starter", default=None)
"""The task that takes part in a run and whose context this is, or is a copy of."""


class _Here(threading.local):
    """What is known of the calling thread."""

    def __init__(self) -> None:
        self.thread: Any = threading.RLock()  # see Participant.thread
        self.thread.acquire()


here = _Here()

_QUIET_TURNS = 3
_MOST_TURNS = 100
_AWAITS = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom"))
_NOT_THE_USERS = (str(Path(asyncio.__file__).parent), str(Path(__file__).parent))


class TaskParticipant(Participant):
    """A task that executes runs.

    Everything but ``climb`` and ``alive`` happens on the thread of its loop, while the task is suspended or in the
    task itself: that is why a cancel can be aimed at one run (G13).
    """

    __slots__ = (
        "_held_back",
        "_joined",
        "_shields",
        "_started_by",
        "_unwinding",
        "issued",
        "loop",
        "others",
        "reader_left",
        "task",
        "thread",
    )

    def __init__(self, task: Task[Any], loop: AbstractEventLoop, *, is_current: bool = True) -> None:
        _by_task[task] = self
        self.task = task
        self._started_by: weakref.ref[Task[Any]] | None = None
        if is_current:
            self._started_by = _starter.get()
            _starter.set(weakref.ref(task))  # inherited by the tasks that it starts from now on
        self.loop = loop
        self.thread = here.thread  # made on it
        self.issued = 0  # cancels of ours that nobody has paid back yet
        self.others = 0  # cancels that were requested before the first of ours
        self._joined: list[Run] | None = None
        self._shields: list[shielded] | None = None
        self._unwinding: Run | None = None
        self._held_back: Run | None = None
        self.reader_left: Callable[[], object] | None = None  # of a generator that is read an item at a time

    def left_behind(self) -> None:
        """End a generator that somebody may keep, half read: nobody reads it any more."""
        if self.reader_left is not None:
            self.reader_left()

    def started_by(self) -> TaskParticipant | None:
        """Return the participant that started the task, as far as that is known and it is alive."""
        task = None if self._started_by is None else self._started_by()
        return None if task is None else _by_task.get(task)

    def alive(self) -> bool:
        """Return whether the task can still take a step."""
        return not self.task.done() and not self.loop.is_closed()

    def describe(self) -> str:
        """Name the author's own line, then the task."""
        where = place(_suspended_in(self.task.get_coro()))
        return f"{where} (task {self.task.get_name()})" if where else f"task {self.task.get_name()}"

    def stack(self) -> tuple[str, ...]:
        """Return the lines where it is suspended, innermost first."""
        return lines(_suspended_in(self.task.get_coro()))

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, Run]) -> None:
        """Cancel tasks, each on the thread of its loop: first those that were made for a run, then those that joined.

        A TaskGroup or gather passes its own cancel down, through as many tasks as there are between. A task that this
        reaches gets none of ours: the second would break its clean-up (G7).
        """
        loops: dict[AbstractEventLoop, list[tuple[TaskParticipant, Run]]] = {}
        for participant, run in targets.items():
            assert isinstance(participant, cls)
            loops.setdefault(participant.loop, []).append((participant, run))
        for loop, pairs in loops.items():
            with contextlib.suppress(RuntimeError):  # a closed loop: its tasks will never take another step
                loop.call_soon_threadsafe(cls._cancel_all, rung, pairs)

    @staticmethod
    def _cancel_all(rung: Rung, pairs: list[tuple[TaskParticipant, Run]]) -> None:
        made_for: list[tuple[TaskParticipant, Run]] = []
        joined: list[tuple[TaskParticipant, Run]] = []
        for pair in pairs:
            is_main = pair[1]._main is pair[0]
            (made_for if is_main or rung is not Rung.CANCEL else joined).append(pair)
        later = _Joined(joined)  # as they are now: to cancel a task that waits for a gather cancels others at once
        for participant, run in made_for:
            participant._cancel(rung, run)
        if joined:
            later()

    def _cancel(self, rung: Rung, run: Run) -> None:
        if self.task.done() or (run._ended is not None and run not in (self._joined or ())):
            return  # it has left that run, and works on for somebody else (G13)
        if rung is Rung.CANCEL:
            if self._is_unwinding():
                return  # it is on its way out already; a second cancel would break its clean-up (G7)
            shield_ends = max((shield._ends_at() for shield in self._shields or ()), default=0.0)
            if shield_ends > clock.now():
                self._held_back = run
                control.get().call_at(shield_ends, lambda: self.climb(rung, {self: run}))
                return
        self.unwinds(run)
        if rung is Rung.CANCEL:
            self._note_clean(run)
        if not self.issued:
            self.others = self.task.cancelling()
        self.issued += 1
        # One from outside that is about to arrive keeps its message: it would arrive as ours.
        self.task.cancel(None if getattr(self.task, "_must_cancel", False) else OURS)

    def unwinds(self, run: Run) -> None:
        """Note that a cancel is on its way to the end of a run."""
        if self._unwinding is None or not self._is_unwinding() or not run._is_within(self._unwinding):
            self._unwinding = run  # else a run of the clean-up is hit alone, and the task unwinds further than that

    def _note_clean(self, run: Run) -> None:
        """Note for each run that the task executes whether a cancel may hit a clean-up: not in a boundary (G7)."""
        runs = [run]
        for node in runs:
            runs += [child for child in node._offspring() if child._main is self]
        is_inside = False
        for node in reversed(runs):
            holders = [boundary.holder for boundary in node._list(Boundary)]
            is_inside = is_inside or any(self in (holder, holder and holder._opener) for holder in holders)
            if node._raised or not is_inside:
                node._note_clean(clean=None)

    def _is_unwinding(self) -> bool:
        """Return whether a cancel of ours has not come to its end: with the body, or with the task if it joined."""
        run = self._unwinding
        return run is not None and (run._ended is None or (run._outcome is None and run in (self._joined or ())))

    def others_now(self) -> int:
        """Return how many cancels are requested that are not ours."""
        count: int = self.task.cancelling()
        return count - self.issued

    def is_cancelled_for(self, run: Run, before: int) -> bool:
        """Return whether cancels of ours since there were so many concern a run: it, or one around it, was stopped."""
        return self.issued > before and self._unwinding is not None and run._is_within(self._unwinding)

    def shield_entered(self, shield: shielded) -> None:
        """Delay CANCEL."""
        if self._shields is None:
            self._shields = []
        self._shields.append(shield)

    def shield_left(self, shield: shielded) -> None:
        """Send a delayed CANCEL."""
        if self._shields:
            self._shields.remove(shield)
        run, self._held_back = self._held_back, None
        if run is not None:
            self.climb(Rung.CANCEL, {self: run})

    def pay_back(self, before: int) -> int:
        """Take back the cancels we issued since there were so many, and say how many they were (G9)."""
        count, self.issued = self.issued - before, before
        for _ in range(count):
            self.task.uncancel()
        return count

    def join(self, run: Run) -> None:
        """Be one of a run's participants from now to the end of the task."""
        if self._joined is None:
            self._joined = []
            self.task.add_done_callback(self._done)
        self._joined.append(run)
        run._admit(self)

    def leave(self) -> None:
        """Forget a task that was made for a run, when that run ends."""
        if self._joined is None:
            _by_task.pop(self.task, None)

    def _done(self, task: Task[Any]) -> None:
        # Asking a task for its exception marks it as seen. For a stop that is wanted: in a task nobody awaits it is no
        # noise. For any other error it is not, hence the look at the attribute first.
        if isinstance(task._exception, AgentStopped):
            task.exception()
        _by_task.pop(task, None)
        for run in self._joined or ():
            if task.cancelling() > 1 and run._stop is not None:
                run._note_clean(clean=None)  # the second one may have hit what the first one set off
            run._withdraw(self)
            run._settle()


class _Joined:
    """Tasks that joined a run, on their way to their CANCEL; called on the thread of their loop, once in each turn.

    It waits until no task of the loop was cancelled for a few turns: by then a cancel that is passed down from one task
    to the next has arrived.
    """

    __slots__ = ("_before", "_cancels", "_pairs", "_quiet", "_turns")

    def __init__(self, pairs: list[tuple[TaskParticipant, Run]]) -> None:
        for participant, run in pairs:
            participant._note_clean(run)
        self._pairs = pairs
        self._before = [participant.task.cancelling() for participant, _ in pairs]
        self._cancels = -1
        self._quiet = 0
        self._turns = 0

    def __call__(self) -> None:
        loop = self._pairs[0][0].loop
        cancels = sum(task.cancelling() for task in asyncio.all_tasks(loop))
        self._quiet = self._quiet + 1 if cancels == self._cancels else 0
        self._cancels = cancels
        self._turns += 1
        if self._quiet < _QUIET_TURNS and self._turns < _MOST_TURNS:
            loop.call_soon(self)
            return
        for (participant, run), before in zip(self._pairs, self._before, strict=True):
            if participant.task.cancelling() > before:
                participant.unwinds(run)
            else:
                participant._cancel(Rung.CANCEL, run)


def _suspended_in(waiting: object) -> list[FrameType]:
    """Return the frames of a chain of awaits, innermost first, without ours and asyncio's."""
    found: list[FrameType] = []
    while waiting is not None:
        for frame_name, inner_name in _AWAITS:
            if hasattr(waiting, frame_name):
                frame = getattr(waiting, frame_name)
                if frame is not None and not frame.f_code.co_filename.startswith(_NOT_THE_USERS):
                    found.insert(0, frame)
                waiting = getattr(waiting, inner_name)
                break
        else:
            break
    return found


def current() -> TaskParticipant | None:
    """Return the participant for the task that executes the calling code; None outside a task."""
    loop = _get_running_loop()
    return None if loop is None else _current_in(loop)


def _current_in(loop: AbstractEventLoop) -> TaskParticipant | None:
    task = current_task(loop)
    if task is None:
        return None
    return _by_task.get(task) or _new_participant(task, loop)


def _new_participant(task: Task[Any], loop: AbstractEventLoop, *, is_current: bool = True) -> TaskParticipant:
    participant = TaskParticipant(task, loop, is_current=is_current)
    task.add_done_callback(participant._done)
    participant._joined = []
    return participant


def join_task(run: Run, task: Task[Any], loop: AbstractEventLoop) -> None:
    """Make a task one of a run's participants; on the thread of its loop."""
    participant = _by_task.get(task) or _new_participant(task, loop, is_current=False)
    if participant is not run._main and participant not in (run._members or ()):
        participant.join(run)


def join(run: Run) -> Participant | None:
    """Return the participant that executes the calling code; a task becomes one of the run's, if it is not yet."""
    main = run._main
    # Nearly always; before 3.12, to ask for the running loop would be a system call.
    if main is not None and main.thread._is_owned() and main.task is current_task(main.loop):
        return main
    loop = _get_running_loop()
    if loop is None:
        return threads.current()
    participant = _current_in(loop)
    if participant is not None and participant not in (run._members or ()):
        participant.join(run)
    return participant


def attend(run: Run) -> None:
    """Make the task or thread that executes the calling code a participant, until it leaves that code."""
    if not isinstance(join(run), TaskParticipant):
        threads.attend(run)


def is_worker_thread() -> bool:
    """Return whether runs are live in the process while this is a bare thread that belongs to none."""
    if _get_running_loop() is not None or threading.current_thread() is threading.main_thread():
        return False
    return bool(_by_task or threads.live)


_MANY = 200
_looks: dict[AbstractEventLoop, dict[Run, list[Task[Any]]]] = {}


def join_leftover(run: Run, loop: AbstractEventLoop) -> None:
    """Make the tasks that were created in the context of a stopped run its participants, now that its body has ended.

    Before 3.12, a task does not tell its context.
    """
    if sys.version_info < (3, 12):
        return
    for task in _by_run(loop).get(run, ()):
        if not task.done() and task is not current_task(loop):
            join_task(run, task, loop)


def _by_run(loop: AbstractEventLoop) -> dict[Run, list[Task[Any]]]:
    """Return the tasks of the stopped runs of a loop; where there are many, one look serves all that end in a turn."""
    found = _looks.get(loop)
    if found is None:
        found = {}
        everybody = asyncio.all_tasks(loop)
        for task in everybody:
            scope = task.get_context().get(context.current)  # type: ignore[attr-defined,unused-ignore]
            run = None if scope is None else scope._run_here()
            if run is not None and run._closed:
                found.setdefault(run, []).append(task)
        if len(everybody) > _MANY:
            _looks[loop] = found
            loop.call_soon(_looks.pop, loop, None)
    return found


def is_our_cancel() -> bool:
    """Return whether the cancel that the current task has got is one that we issued, and no other came as well."""
    participant = current()
    if participant is None or not participant.issued:
        return False
    return participant.others_now() <= participant.others


def passed_on(run: Run) -> bool:
    """Pass somebody else's cancel on to a run that is read or waited for, as it would hit a plain call (G9)."""
    if is_our_cancel():
        return False
    run.stop(Mode.IMMEDIATE, Reason.of("CancelledError from outside", kind=ReasonKind.EXTERNAL))
    return True
