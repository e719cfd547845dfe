"""Asyncio tasks as participants, the tasks that a run left behind, and which code issued the cancel of a task."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import threading
import weakref
from asyncio import AbstractEventLoop, Task
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from stoppable._core import clock, context
from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.reason import Reason, ReasonKind
from stoppable._core.shield import shielded
from stoppable._core.state import Mode, Rung
from stoppable._engine import control, pulse, threads
from stoppable._engine.awaiters import awaiters_of
from stoppable._engine.source_lines import lines, place
from stoppable.errors import AgentStopped

_get_running_loop = asyncio._get_running_loop
# Both take the loop; before 3.12 the public function is written in Python and would be a fifth of a boundary's cost.
if sys.version_info >= (3, 12):
    current_task = asyncio.current_task
else:
    current_task = asyncio.tasks._current_tasks.get  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

OURS = "stopped by stoppable"
"""The message of the cancels that stoppable issues, recognized by its identity."""

_by_task: dict[Task[Any], TaskParticipant] = {}
_starter: contextvars.ContextVar[weakref.ref[Task[Any]] | None] = contextvars.ContextVar("starter", default=None)
"""The participating task that owns the current context, or from whose context it was copied."""


class _Here(threading.local):
    """The lock that identifies the calling thread; see Participant.thread."""

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
        self.thread = here.thread  # this is the loop's thread
        self.issued = 0  # our cancels that were not taken back yet
        self.others = 0  # foreign cancels before our first one
        self._joined: list[RunNode] | None = None
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
        return None if task is None else _by_task.get(task)

    def awaiters(self) -> Iterable[Participant]:
        """Return the participants whose tasks wait for this one."""
        return [_by_task[task] for task in awaiters_of(self.task) if task in _by_task]

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
        made_for: list[tuple[TaskParticipant, RunNode]] = []
        joined: list[tuple[TaskParticipant, RunNode]] = []
        for pair in pairs:
            is_main = pair[1].main is pair[0]
            (made_for if is_main or rung is not Rung.CANCEL else joined).append(pair)
        later = _Joined(joined)  # first, because cancelling a task that waits for a gather cancels others at once
        for participant, run in made_for:
            participant._cancel(rung, run)
        if joined:
            later()

    def _cancel(self, rung: Rung, run: RunNode) -> None:
        if self.task.done() or (run.body_end is not None and run not in (self._joined or ())):
            return  # it has left that run, and now works for other code (G13)
        if rung is Rung.CANCEL:
            if self._is_unwinding():
                return  # it is already unwinding; a second cancel would break its clean-up (G7)
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
        # A cancel that is about to arrive keeps its message; otherwise a foreign one would look like ours, and ours
        # like a foreign one.
        is_due = getattr(self.task, "_must_cancel", False)
        self.task.cancel(getattr(self.task, "_cancel_message", None) if is_due else OURS)

    def unwinds(self, run: RunNode) -> None:
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
        return run is not None and (run.body_end is None or (run.outcome is None and run in (self._joined or ())))

    def others_now(self) -> int:
        """Return the number of requested cancels that other code issued."""
        count: int = self.task.cancelling()
        return count - self.issued

    def is_cancelled_for(self, run: RunNode, before: int) -> bool:
        """Return whether one of our cancels, after the first ``before``, was for this run or one around it."""
        return self.issued > before and self._unwinding is not None and run.is_within(self._unwinding)

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

    def pay_back(self, before: int) -> int:
        """Take back our cancels, except the first ``before``, and return their number (G9)."""
        count, self.issued = self.issued - before, before
        for _ in range(count):
            self.task.uncancel()
        return count

    def join(self, run: RunNode) -> None:
        """Become a participant of a run, until the task ends."""
        if self._joined is None:
            self._joined = []
            self.task.add_done_callback(self._done)
        self._joined.append(run)
        run.admit(self)

    def leave(self) -> None:
        """Forget a task that was made for a run, at the end of the run."""
        if self._joined is None:
            _by_task.pop(self.task, None)

    def _done(self, task: Task[Any]) -> None:
        # Calling exception() keeps asyncio from logging that it was never retrieved. For a stop that is right, but
        # other errors must still be logged, so the attribute is read first.
        if isinstance(task._exception, AgentStopped):
            task.exception()
        _by_task.pop(task, None)
        for run in self._joined or ():
            if task.cancelling() > 1 and run.first_stop is not None:
                run.note_clean(clean=None)  # the second cancel may have hit the clean-up after the first
            run.withdraw(self)
            run.settle()


class _Joined:
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
                participant.unwinds(run)
            else:
                participant._cancel(Rung.CANCEL, run)


def suspended_in(waiting: object) -> list[FrameType]:
    """Return the frames of a chain of awaits, innermost first, without those of stoppable and asyncio."""
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


def starter() -> TaskParticipant | None:
    """Return the participant that executes the calling code, or that started its task, however indirectly."""
    task = _starter.get()
    return None if task is None else _by_task.get(task())  # type: ignore[arg-type]  # None is never among them


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
    pulse.follow(loop)
    participant = TaskParticipant(task, loop, is_current=is_current)
    task.add_done_callback(participant._done)
    participant._joined = []
    return participant


def join_task(run: RunNode, task: Task[Any], loop: AbstractEventLoop) -> TaskParticipant:
    """Make a task a participant of a run; call it on the thread of the task's loop."""
    participant = _by_task.get(task) or _new_participant(task, loop, is_current=False)
    if participant is not run.main and participant not in (run.members or ()):
        participant.join(run)
    return participant


def cancel(task: Task[Any], rung: Rung, run: RunNode) -> None:
    """Cancel a task that has joined a run, on behalf of the run; call it on the thread of the task's loop."""
    _by_task[task]._cancel(rung, run)


def join(run: RunNode) -> Participant | None:
    """Return the participant that executes the calling code; a task joins the run if it has not yet."""
    main = run.main
    # The usual case, without asking for the running loop, which is a system call before 3.12.
    if main is not None and main.thread._is_owned() and main.task is current_task(main.loop):
        return main
    loop = _get_running_loop()
    if loop is None:
        return threads.current()
    participant = _current_in(loop)
    if participant is not None and participant not in (run.members or ()):
        if threads.is_visiting(run, loop):
            return threads.current()  # the task may be anybody's, and would be cancelled with the run (G9)
        participant.join(run)
    return participant


def attend(run: RunNode) -> None:
    """Make the task or thread that executes the calling code a participant, until it leaves that code."""
    if not isinstance(join(run), TaskParticipant):
        threads.attend(run)


def is_worker_thread() -> bool:
    """Return whether runs are live but this thread belongs to none of them."""
    if _get_running_loop() is not None or threading.current_thread() is threading.main_thread():
        return False
    return bool(threads.live) or any(participant.alive() for participant in list(_by_task.values()))


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
    found = _looks.get(loop)
    if found is None:
        found = {}
        everybody = asyncio.all_tasks(loop)
        for task in everybody:
            scope = context_of(task).get(context.current)
            run = None if scope is None else scope.run_here()
            if run is not None and run.closed:
                found.setdefault(run, []).append(task)
        if len(everybody) > _MANY:
            _looks[loop] = found
            loop.call_soon(_looks.pop, loop, None)
    return found


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


def is_marked_ours(cancel: asyncio.CancelledError) -> bool:
    """Return whether an exception is a cancel that stoppable issued."""
    return bool(cancel.args) and cancel.args[0] is OURS


def is_our_cancel() -> bool:
    """Return whether stoppable issued the cancel of the current task, and no other code cancelled it as well."""
    participant = current()
    if participant is None or not participant.issued:
        return False
    return participant.others_now() <= participant.others


def passed_on(run: RunNode) -> bool:
    """Pass a foreign cancel on to the run that the task reads or awaits, as a cancel would hit a plain call (G9)."""
    if is_our_cancel():
        return False
    run.stop(Mode.IMMEDIATE, Reason.of("CancelledError from outside", kind=ReasonKind.EXTERNAL))
    return True
