"""Asyncio tasks as participants, the tasks that a run left behind, and which code issued the cancel of a task.

A stop may end a task in one way only, ``task.cancel()``, and a cancel cannot be aimed: it hits whatever await the task
is in. Three rules make it hit the right code, once.

- **On the thread of the loop, while the task is suspended** (``TaskParticipant._cancel``). Nothing of the task runs
  meanwhile, so which run it is in cannot change between the look and the cancel (G13). A task that has left the run
  since the ladder was climbed is left alone.
- **Once before KILL** (G7). A second cancel would hit the ``finally`` that the first one started. ``_unwinding`` is the
  run to whose end a cancel unwinds the task, and as long as it does, CANCEL does nothing. A TaskGroup or gather passes
  its cancel down to tasks that have joined the same run; those are cancelled last, after the loop has been quiet for a
  few turns, and only if nothing has reached them by then (``_DelayedCancel``).
- **Counted** (G9): each cancel is added to ``own_cancels``, and the edge takes back what came while it was open. How
  the sums tell stoppable's cancels from those of other code is at the top of ``edge.py``.

A task that was made for a run (``run.main``) ends with it. A task that only entered a boundary or asked
``should_stop()`` has joined: it is cancelled with the run, and the run waits for its end. Tasks that user code created
and never joined are found at the end of the body by the run in their context (``join_leftover``).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, cast

from stoppable._core import clock, context, participants
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.shield import shielded
from stoppable._core.values import Mode, Reason, ReasonKind, Rung
from stoppable._engine import control
from stoppable._engine.source_lines import frames_of_thread, lines, place, stacks_of_threads
from stoppable.errors import AgentStopped

_MOST = 64  # futures to look at


def awaiters_of(task: asyncio.Task[Any]) -> Iterator[asyncio.Task[Any]]:
    """Yield the tasks that wait for a task, nearest first."""
    futures: list[asyncio.Future[Any]] = [task]
    for future in futures:
        for callback, *_ in getattr(future, "_callbacks", None) or ():
            for waiter in _behind(callback):
                if waiter not in futures and len(futures) < _MOST:
                    futures.append(waiter)
                    if isinstance(waiter, asyncio.Task):
                        yield waiter


def _behind(callback: Any) -> Iterator[asyncio.Future[Any]]:
    """Yield the futures that a callback of a future resolves or wakes."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.TaskGroup):
        owner = owner._parent_task  # type: ignore[attr-defined]
    values = [owner, *(callback.args if isinstance(callback, partial) else ())]
    values += [cell.cell_contents for cell in getattr(callback, "__closure__", None) or () if _is_filled(cell)]
    for value in values:
        if asyncio.isfuture(value):
            yield value


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


_get_running_loop = asyncio._get_running_loop
# Both take the loop; before 3.12 the public function is written in Python and would be a fifth of a boundary's cost.
if sys.version_info >= (3, 12):
    current_task = asyncio.current_task
else:
    current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

OWN_CANCEL = "stopped by stoppable"
"""The message of the cancels that stoppable issues, recognized by its identity."""

by_task = cast("dict[Task[Any], TaskParticipant]", participants.executing)
_starter: contextvars.ContextVar[weakref.ref[Task[Any]] | None] = contextvars.ContextVar("starter", default=None)
"""The participating task that owns the current context, or from whose context it was copied."""


class _CallingThread(threading.local):
    """The lock that identifies the calling thread; see Participant.thread."""

    def __init__(self) -> None:
        self.thread: Any = threading.RLock()  # see Participant.thread
        self.thread.acquire()


here = _CallingThread()

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
        "_joined_runs",
        "_shields",
        "_started_by",
        "_unwinding",
        "foreign_before",
        "loop",
        "own_cancels",
        "reader_left",
        "task",
        "thread",
    )

    def __init__(self, task: Task[Any], loop: AbstractEventLoop, *, is_current: bool = True) -> None:
        by_task[task] = self
        self.task = task
        self._started_by: weakref.ref[Task[Any]] | None = None
        if is_current:
            self._started_by = _starter.get()
            _starter.set(weakref.ref(task))  # inherited by the tasks that it starts from now on
        self.loop = loop
        self.thread = here.thread  # this is the loop's thread
        self.own_cancels = 0  # our cancels that were not taken back yet
        self.foreign_before = 0  # foreign cancels before our first one
        self._joined_runs: list[RunNode] | None = None
        self._shields: list[shielded] | None = None
        self._unwinding: RunNode | None = None
        self._held_back: RunNode | None = None
        self.reader_left: Callable[[], object] | None = None  # set for a generator that is read one item at a time

    def left_behind(self) -> None:
        """End a generator that was read halfway: a variable may keep it alive, but it is no longer read."""
        if self.reader_left is not None:
            self.reader_left()

    def started_by(self) -> TaskParticipant | None:
        """Return the participant that started the task, if it is known and alive."""
        task = None if self._started_by is None else self._started_by()
        return None if task is None else by_task.get(task)

    def awaiters(self) -> Iterable[Participant]:
        """Return the participants whose tasks wait for this one."""
        return [by_task[task] for task in awaiters_of(self.task) if task in by_task]

    def alive(self) -> bool:
        """Return whether the task can still take a step."""
        return not self.task.done() and not self.loop.is_closed()

    def describe(self) -> str:
        """Return the user's own line, then the task's name."""
        where = place(suspended_in(self.task.get_coro()))
        return f"{where} (task {self.task.get_name()})" if where else f"task {self.task.get_name()}"

    def stack(self) -> tuple[str, ...]:
        """Return the lines where it is suspended, innermost first."""
        return lines(suspended_in(self.task.get_coro()))

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Cancel tasks, each on the thread of its loop: first those that were made for a run, then those that joined.

        A TaskGroup or gather passes a cancel down, through as many tasks as there are in between. A task that gets it
        that way is not cancelled again: a second cancel would break its clean-up (G7).
        """
        loops: dict[AbstractEventLoop, list[tuple[TaskParticipant, RunNode]]] = {}
        for participant, run in targets.items():
            assert isinstance(participant, cls)
            loops.setdefault(participant.loop, []).append((participant, run))
        for loop, pairs in loops.items():
            with contextlib.suppress(RuntimeError):  # a closed loop: its tasks will never take another step
                loop.call_soon_threadsafe(cls._cancel_all, rung, pairs)

    @staticmethod
    def _cancel_all(rung: Rung, pairs: list[tuple[TaskParticipant, RunNode]]) -> None:
        main_pairs: list[tuple[TaskParticipant, RunNode]] = []
        joined_pairs: list[tuple[TaskParticipant, RunNode]] = []
        for pair in pairs:
            is_main = pair[1].main is pair[0]
            (main_pairs if is_main or rung is not Rung.CANCEL else joined_pairs).append(pair)
        # First, because cancelling a task that waits for a gather cancels others at once.
        later = _DelayedCancel(joined_pairs)
        for participant, run in main_pairs:
            participant._cancel(rung, run)
        if joined_pairs:
            later()

    def _cancel(self, rung: Rung, run: RunNode) -> None:
        if self.task.done() or (run.body_end is not None and run not in (self._joined_runs or ())):
            return  # it has left that run, and now works for other code (G13)
        if rung is Rung.CANCEL:
            if self._is_unwinding():
                return  # it is already unwinding; a second cancel would break its clean-up (G7)
            shield_ends = max((shield._ends_at() for shield in self._shields or ()), default=0.0)
            if shield_ends > clock.now():
                self._held_back = run
                control.get().call_at(shield_ends, lambda: self.climb(rung, {self: run}))
                return
        self.note_unwinding(run)
        if rung is Rung.CANCEL:
            self._note_clean(run)
        if not self.own_cancels:
            self.foreign_before = self.task.cancelling()
        self.own_cancels += 1
        # A cancel that is about to arrive keeps its message; otherwise a foreign one would look like ours, and ours
        # like a foreign one.
        is_due = getattr(self.task, "_must_cancel", False)
        self.task.cancel(getattr(self.task, "_cancel_message", None) if is_due else OWN_CANCEL)

    def note_unwinding(self, run: RunNode) -> None:
        """Record that a cancel unwinds the task to the end of a run."""
        if self._unwinding is None or not self._is_unwinding() or not run.is_within(self._unwinding):
            self._unwinding = run  # otherwise this run is part of the clean-up, and the task unwinds further

    def _note_clean(self, run: RunNode) -> None:
        """Record for each run of the task that a cancel may hit a clean-up, unless it hits a boundary (G7)."""
        runs = [run]
        for node in runs:
            runs += [child for child in node.list_children() if child.main is self]
        is_inside = False
        for node in reversed(runs):
            holders = [boundary.holder for boundary in node.members_of(Boundary)]
            is_inside = is_inside or any(self in (holder, holder and holder._opener) for holder in holders)
            if node.noticed or not is_inside:
                node.note_clean(clean=None)

    def _is_unwinding(self) -> bool:
        """Return whether our cancel still unwinds the task: to the end of the body, or of the task if it joined."""
        run = self._unwinding
        return run is not None and (run.body_end is None or (run.outcome is None and run in (self._joined_runs or ())))

    def foreign_cancels(self) -> int:
        """Return the number of requested cancels that other code issued."""
        count: int = self.task.cancelling()
        return count - self.own_cancels

    def is_cancelled_for(self, run: RunNode, before: int) -> bool:
        """Return whether one of our cancels, after the first ``before``, was for this run or one around it."""
        return self.own_cancels > before and self._unwinding is not None and run.is_within(self._unwinding)

    def shield_entered(self, shield: shielded) -> None:
        """Delay CANCEL."""
        if self._shields is None:
            self._shields = []
        self._shields.append(shield)

    def is_shielded(self) -> bool:
        """Return whether it is inside a shield that it entered itself."""
        return bool(self._shields)

    def shield_left(self, shield: shielded) -> None:
        """Send a delayed CANCEL."""
        if self._shields:
            self._shields.remove(shield)
        run, self._held_back = self._held_back, None
        if run is not None:
            self.climb(Rung.CANCEL, {self: run})

    def uncancel_own(self, before: int) -> int:
        """Take back our cancels, except the first ``before``, and return their number (G9)."""
        count, self.own_cancels = self.own_cancels - before, before
        for _ in range(count):
            self.task.uncancel()
        return count

    def join(self, run: RunNode) -> None:
        """Become a participant of a run, until the task ends."""
        if self._joined_runs is None:
            self._joined_runs = []
            self.task.add_done_callback(self._on_done)
        self._joined_runs.append(run)
        run.admit(self)

    def leave(self) -> None:
        """Forget a task that was made for a run, at the end of the run."""
        if self._joined_runs is None:
            by_task.pop(self.task, None)

    def _on_done(self, task: Task[Any]) -> None:
        # Calling exception() keeps asyncio from logging that it was never retrieved. For a stop that is right, but
        # other errors must still be logged, so the attribute is read first.
        if isinstance(task._exception, AgentStopped):
            task.exception()
        by_task.pop(task, None)
        for run in self._joined_runs or ():
            if task.cancelling() > 1 and run.first_stop is not None:
                run.note_clean(clean=None)  # the second cancel may have hit the clean-up after the first
            run.withdraw(self)
            run.settle()


class _DelayedCancel:
    """Cancels tasks that joined a run, a little later; called on the thread of their loop, once in each turn.

    It waits until no task of the loop was cancelled for a few turns: by then, a cancel that is passed down from task to
    task has arrived.
    """

    __slots__ = ("_before", "_cancels", "_pairs", "_quiet", "_turns")

    def __init__(self, pairs: list[tuple[TaskParticipant, RunNode]]) -> None:
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
                participant.note_unwinding(run)
            else:
                participant._cancel(Rung.CANCEL, run)


def suspended_in(waiting: object) -> list[FrameType]:
    """Return the frames of a chain of awaits, innermost first, without those of stoppable and asyncio."""
    frames: list[FrameType] = []
    while waiting is not None:
        for frame_name, inner_name in _AWAITS:
            if hasattr(waiting, frame_name):
                frame = getattr(waiting, frame_name)
                if frame is not None and not frame.f_code.co_filename.startswith(_NOT_THE_USERS):
                    frames.insert(0, frame)
                waiting = getattr(waiting, inner_name)
                break
        else:
            break
    return frames


def starter() -> TaskParticipant | None:
    """Return the participant that executes the calling code, or that started its task, however indirectly."""
    task = _starter.get()
    return None if task is None else by_task.get(task())  # type: ignore[arg-type]  # None is never among them


def current() -> TaskParticipant | None:
    """Return the participant for the task that executes the calling code; None outside a task."""
    loop = _get_running_loop()
    return None if loop is None else current_in(loop)


def current_in(loop: AbstractEventLoop) -> TaskParticipant | None:
    task = current_task(loop)
    if task is None:
        return None
    return by_task.get(task) or _new_participant(task, loop)


def _new_participant(task: Task[Any], loop: AbstractEventLoop, *, is_current: bool = True) -> TaskParticipant:
    control.follow_loop(loop)
    participant = TaskParticipant(task, loop, is_current=is_current)
    task.add_done_callback(participant._on_done)
    participant._joined_runs = []
    return participant


def join_task(run: RunNode, task: Task[Any], loop: AbstractEventLoop) -> TaskParticipant:
    """Make a task a participant of a run; call it on the thread of the task's loop."""
    participant = by_task.get(task) or _new_participant(task, loop, is_current=False)
    if participant is not run.main and participant not in (run.members or ()):
        participant.join(run)
    return participant


def cancel(task: Task[Any], rung: Rung, run: RunNode) -> None:
    """Cancel a task that has joined a run, on behalf of the run; call it on the thread of the task's loop."""
    by_task[task]._cancel(rung, run)


_MANY = 200
_looks: dict[AbstractEventLoop, dict[RunNode, list[Task[Any]]]] = {}


def join_leftover(run: RunNode, loop: AbstractEventLoop) -> None:
    """Make the tasks that were created in the context of a stopped run its participants, now that its body has ended.

    Those that nothing has cancelled yet catch up with the rung that the run has reached.
    """
    targets: dict[Participant, RunNode] = {}
    for task in _by_run(loop).get(run, ()):
        if not task.done() and task is not current_task(loop):
            participant = join_task(run, task, loop)
            if not task.cancelling():
                targets[participant] = run
    if targets and run.rung is not None and run.rung >= Rung.CANCEL:
        TaskParticipant.climb(Rung.CANCEL, targets)


def _by_run(loop: AbstractEventLoop) -> dict[RunNode, list[Task[Any]]]:
    """Return the tasks of a loop by stopped run; if there are many, the result is kept for one turn of the loop."""
    by_run = _looks.get(loop)
    if by_run is None:
        by_run = {}
        everybody = asyncio.all_tasks(loop)
        for task in everybody:
            scope = context_of(task).get(context.current)
            run = None if scope is None else scope.run_here()
            if run is not None and run.closed:
                by_run.setdefault(run, []).append(task)
        if len(everybody) > _MANY:
            _looks[loop] = by_run
            loop.call_soon(_looks.pop, loop, None)
    return by_run


if sys.version_info >= (3, 12):

    def context_of(task: Task[Any]) -> contextvars.Context:
        """Return the context of a task."""
        return task.get_context()
else:

    def context_of(task: Task[Any]) -> contextvars.Context:
        """Return the context of a task."""
        # There is no method for it yet; the garbage collector visits the context before those of the callbacks.
        contexts = (each for each in gc.get_referents(task) if isinstance(each, contextvars.Context))
        return next(contexts, _NO_CONTEXT)


_NO_CONTEXT = contextvars.Context()


def is_own(cancel: asyncio.CancelledError) -> bool:
    """Return whether an exception is a cancel that stoppable issued."""
    return bool(cancel.args) and cancel.args[0] is OWN_CANCEL


def is_only_own_cancel() -> bool:
    """Return whether stoppable issued the cancel of the current task, and no other code cancelled it as well."""
    participant = current()
    if participant is None or not participant.own_cancels:
        return False
    return participant.foreign_cancels() <= participant.foreign_before


def stop_on_foreign_cancel(run: RunNode) -> bool:
    """Pass a foreign cancel on to the run that the task reads or awaits, as a cancel would hit a plain call (G9)."""
    if is_only_own_cancel():
        return False
    run.stop(Mode.IMMEDIATE, Reason.of("CancelledError from outside", kind=ReasonKind.EXTERNAL))
    return True


# Event loops that the threads of a run run themselves: blocking code calls ``asyncio.run`` for an async tool.


def main_task(thread: threading.Thread, stacks: Mapping[int, FrameType] | None = None) -> Task[Any] | None:
    """Return the task that a thread runs to its end, as ``asyncio.run`` does."""
    for frame in frames_of_thread(thread, stacks):
        # Only of these two functions, whose variables stay: to read those of code that goes on meanwhile is what a
        # debugger does to a thread that it has halted, and has crashed Python 3.11.
        if frame.f_code.co_name not in ("run", "run_until_complete"):
            continue
        owner = frame.f_locals.get("self")
        if isinstance(owner, AbstractEventLoop) and frame.f_code.co_name == "run_until_complete":
            main = frame.f_locals.get("future")
        elif isinstance(owner, asyncio.Runner):
            main = frame.f_locals.get("task")  # uvloop has no frames
        else:
            continue
        if isinstance(main, Task):
            return main
    return None


def cancel_main_tasks(rung: Rung, targets: Iterable[tuple[threading.Thread, RunNode]]) -> None:
    """Cancel the tasks that threads run to their end, those that belong to the run of their thread."""
    stacks = stacks_of_threads()
    for thread, run in targets:
        task = main_task(thread, stacks)
        if task is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                task.get_loop().call_soon_threadsafe(_cancel, task, rung, run)


def _cancel(task: Task[Any], rung: Rung, run: RunNode) -> None:
    # On the thread of the loop, between two steps of the task. While a step calls blocking code that is a run of its
    # own, the task would seem to belong to that run, but it belongs to the caller (G9).
    scope = context_of(task).get(context.current)
    home = None if scope is None else scope.run_here()
    if task.done() or home is None or not home.is_within(run):
        return
    participant = join_task(run, task, task.get_loop())
    if rung is Rung.CANCEL and isinstance(scope, shielded) and not participant.is_shielded():
        return  # not its own shield: it is a part of the clean-up of the code that runs the loop, until KILL
    cancel(task, rung, run)
