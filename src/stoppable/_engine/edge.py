"""The run edge: how a body ended, and what its way out means (the table in docs/semantics.md).

**The account of cancels.** A stop ends a task with ``task.cancel()``, which asyncio only counts: ``task.cancelling()``
goes up by one, one CancelledError is raised at the next await, and nothing says who asked for it. Other code cancels
the same task for its own reasons: ``asyncio.timeout``, a TaskGroup whose child failed, a server whose client has gone.
The edge must let those pass, with the count that their owners expect, and keep stoppable's own to itself (G9). So there
are two sums for each task:

    own_cancels        those that stoppable issued and has not taken back (TaskParticipant)
    foreign_cancels()  all others: ``task.cancelling() - own_cancels``

and each edge remembers both as they were when it opened, because runs nest in one task and an outer run may already be
unwinding. The invariant: **when an edge closes, own_cancels is what it was when the edge opened**, unless a cancel was
meant for a run further out, which then unwinds this task to its own edge. ``_absorb_own_cancels`` restores it with
``uncancel()``, and what is left of the CancelledError afterwards is foreign and propagates.

Why it holds: stoppable cancels a task only on the thread of its loop, while the task is suspended, and counts in the
same step, so no count is ever half made. What would break it, and what is done about each:

- The body calls ``uncancel()`` itself for stoppable's cancel, as TaskGroup and timeout do for theirs. The sum is then
  one too high, and a foreign cancel after it looks like stoppable's. The exception tells: stoppable's carry the message
  ``OWN_CANCEL``, recognized by identity (``_is_taken_back``).
- A cancel is requested but has not arrived when the body returns. Before 3.13 ``uncancel()`` does not revoke it, and it
  would hit the caller's next await: the edge awaits once and lets it arrive there.
- A TaskGroup leaves a cancel behind when a child fails while it waits (until 3.13). The count alone therefore proves a
  foreign cancel only after stoppable's first; before, the exception must show it too (``_is_foreign``).
- A stop is raised while a foreign cancel unwinds the body: AgentStopped hides it, but its owner still waits for it
  (``_hidden_cancel``).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import signal
import sys
from asyncio import AbstractEventLoop, CancelledError, Runner, Task
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from opcode import opmap
from subprocess import CalledProcessError
from typing import Any, Never, Self

from stoppable._core import context
from stoppable._core.context import RunContext
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant, RemoteParticipant
from stoppable._core.shield import shielded
from stoppable._core.values import Outcome, Reason, ReasonKind, Rung, Status
from stoppable._engine import control, tasks, threads
from stoppable._engine.executors import give_executor
from stoppable._engine.tasks import join_leftover
from stoppable._engine.waits import await_end, sleep, wait_for_end, wait_for_stop
from stoppable.errors import AgentStopped, RunLost, RunStopped, StoppableError

_SHALLOW = 150  # deeper stacks are checked; nearly always there are fewer frames
_NEEDED = 40  # the longest path from an agent's call to the end of its run takes 20, with a store


def require_stack_room() -> None:
    """Raise RecursionError before a run begins, if its beginning or end could run out of stack.

    In the middle of either, the error would leave a run behind that never ends.
    """
    try:
        sys._getframe(_SHALLOW)
    except ValueError:
        return
    _dive(_NEEDED)


def _dive(frames: int) -> None:
    if frames:
        _deeper(frames - 1)


# From 3.12 on, calls that pass through C have a separate limit; before, every call counts against the same one.
_deeper: Callable[[int], None] = functools.partial(_dive) if sys.version_info >= (3, 12) else _dive


FOREIGN = (CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)
_KINDS: dict[type[BaseException], ReasonKind] = {
    CancelledError: ReasonKind.EXTERNAL,
    GeneratorExit: ReasonKind.DISCONNECT,
    KeyboardInterrupt: ReasonKind.SHUTDOWN,
    SystemExit: ReasonKind.SHUTDOWN,
}


def is_own_cancel(error: BaseException | None) -> bool:
    """Return whether an exception is a cancel that stoppable issued, or was raised while one was handled."""
    while error is not None:
        if isinstance(error, CancelledError) and tasks.is_own(error):
            return True
        error = error.__context__
    return False


def foreign_cancel_in(error: BaseException | None) -> CancelledError | None:
    """Return the foreign cancel that caused an exception, or during whose handling it was raised."""
    while error is not None:
        if isinstance(error, CancelledError) and not tasks.is_own(error):
            return error
        error = error.__cause__ if error.__suppress_context__ else error.__context__
    return None


_RAISE = opmap["RAISE_VARARGS"]
_HANDLERS = (Runner._on_sigint.__code__,)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def is_raised_by_code(error: BaseException) -> bool:
    """Return whether a ``raise`` statement raised an exception; Python's handler of Ctrl-C raises without one."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code in _HANDLERS:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


Exit = tuple[AgentStopped | None, BaseException | None, BaseException | None]


def classify(error: BaseException | None, late: BaseException | None = None) -> Exit:
    """Split a body's exception, and later ones, into a stop, a foreign exception and an error."""
    if late is not None:
        stop, outsider, rest = classify(error)
        late_stop, late_outsider, late_rest = classify(late)
        return stop or late_stop, outsider or late_outsider, rest or late_rest
    if error is None:
        return None, None, None
    if isinstance(error, AgentStopped):
        return error, None, None
    if isinstance(error, FOREIGN):
        return None, error, None
    if isinstance(error, BaseExceptionGroup):
        stops, others = error.split(AgentStopped)
        outsiders, rest = (None, None) if others is None else others.split(FOREIGN)
        return _leaf(stops), _leaf(outsiders), rest
    return None, None, error


def _leaf(group: BaseException | None) -> Any:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def kind(outsider: BaseException) -> ReasonKind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(outsider, cls))


def foreign_stop_error(stop: AgentStopped) -> Exception:
    """Turn a stop of an unrelated run into an error: the body awaited code of another run."""
    error = RunStopped(stop.target, Outcome(status=Status.STOPPED, reason=stop.reason))
    error.__cause__ = stop
    return error


def is_of_interrupted_command(error: BaseException | None) -> bool:
    """Return whether a command that died of Ctrl-C caused an exception."""
    while error is not None:
        if isinstance(error, CalledProcessError):
            return error.returncode in _INTERRUPTED
        error = error.__cause__ or error.__context__
    return False


_INTERRUPTED = (-signal.SIGINT, 128 + signal.SIGINT)  # a shell returns the second for a command of its own
_CTRL_C_SECONDS = 1.0  # a terminal sends Ctrl-C to the commands of a run too: one may die before we handle it
_COMPLETED = Status.COMPLETED
_LOOK_SECONDS = 0.02


class _Edge:
    """The entry and exit of a run, whatever executes it.

    ``open`` and ``close`` bracket the body; between them the calling code belongs to the run. ``close`` writes the
    outcome and raises only foreign exceptions: a cancel by other code, a KeyboardInterrupt, a SystemExit, a
    GeneratorExit. ``answer`` returns or raises what the caller of the run gets.
    """

    __slots__ = ("_foreign_at_open", "_is_one_due", "_own_at_open", "_propagating", "_reset", "participant", "run")

    participant: tasks.TaskParticipant  # only in a task, like the three below
    _own_at_open: int  # stoppable's cancels that were pending when the run was opened: those of an outer run
    _foreign_at_open: int  # cancels of other code at that time
    _is_one_due: bool  # whether one of the cancels at that time had not arrived yet

    def __init__(self, run: RunNode) -> None:
        self.run = run
        self._propagating: AgentStopped | None = None
        self._reset: contextvars.Token[RunContext] | None = None

    def _open(self, participant: Participant) -> bool:
        """Begin the run; False if it was stopped before it began."""
        self._reset = _begin(self.run, participant)
        return self._reset is not None

    def _open_in(self, participant: tasks.TaskParticipant) -> None:
        """Record the cancels of the task so far: the run takes back only those that come while it is open."""
        self.participant = participant
        self._own_at_open = issued = participant.own_cancels
        self._foreign_at_open = participant.task.cancelling() - issued
        self._is_one_due = bool(getattr(participant.task, "_must_cancel", False))

    def _without_own(self, outsider: BaseException | None) -> BaseException | None:
        """Return the foreign exception that remains after our cancels were taken back (G9)."""
        if not isinstance(outsider, CancelledError):
            return outsider
        run = self.run
        if self._is_foreign(outsider):
            run.note_clean(clean=None)  # it may have come while our cancel was unwinding the body
            return outsider
        run.deliver(raised=True)  # it was cut off, although it may have been stopped before it began
        if outsider.__context__ is not None:
            run.note_clean(clean=None)  # in an except or a finally
        return None

    def _is_taken_back(self, outsider: BaseException | None) -> bool:
        """Return whether the body called ``uncancel()`` for our cancel, and a foreign cancel came after that.

        The count then looks as if the cancel were ours; only the message of the exception tells them apart.
        """
        participant = self.participant
        if not isinstance(outsider, CancelledError) or participant.foreign_cancels() > participant.foreign_before:
            return False
        return not is_own_cancel(outsider)

    def _is_foreign(self, cancel: CancelledError) -> bool:
        """Return whether other code has cancelled the task as well.

        After our cancel the count proves it. Before it does not: until 3.13, a TaskGroup whose child fails while it
        waits leaves a cancel behind.
        """
        count = self.participant.foreign_cancels()
        if count > self.participant.foreign_before:
            return True
        return count > self._foreign_at_open and foreign_cancel_in(cancel) is not None

    def _hidden_cancel(self, error: BaseException | None) -> CancelledError | None:
        """Return a foreign cancel that our stop hides: the stop was raised while the cancel unwound the body."""
        return foreign_cancel_in(error) if self.participant.foreign_cancels() > self._foreign_at_open else None

    def _close(
        self, result: object, stop: AgentStopped | None, outsider: BaseException | None, rest: BaseException | None
    ) -> None:
        """End the run according to how its body ended."""
        run = self.run
        if stop is not None and (run.first_stop is None or all(stop.target != each.id for each in run.lineage())):
            rest = rest or foreign_stop_error(stop)
            stop = None
        if outsider is not None and self._is_own(outsider):
            rest = rest or outsider
            for child in _live_below(run):
                child.stop(reason=_reason_of_failure(outsider))
        elif outsider is not None:
            run.stop(reason=Reason.of(f"{type(outsider).__name__} from outside", kind=kind(outsider)))
            run.deliver(raised=True)
        if stop is not None:
            run.deliver(raised=True)
        self._propagating = stop
        run.end(result, rest)

    def _is_own(self, outsider: BaseException) -> bool:
        """Return whether the body itself raised an exception that usually comes from outside: the run has failed.

        ``stopped`` needs a stop: a cancel that other code issued, Ctrl-C, or a generator whose consumer left it.
        """
        match outsider:
            case CancelledError():
                return not is_own_cancel(outsider) and not self._was_cancelled_since_it_opened()
            case KeyboardInterrupt():
                return is_raised_by_code(outsider)
            case _:
                return isinstance(outsider, SystemExit)

    def _was_cancelled_since_it_opened(self) -> bool:
        """Return whether any code has cancelled the task of the run; a thread cannot be cancelled."""
        participant = getattr(self, "participant", None)
        return (
            participant is not None
            and participant.task.cancelling() > self._own_at_open + self._foreign_at_open - self._is_one_due
        )

    def _left_behind(self, error: BaseException | None) -> Iterator[RunNode]:
        """Yield the children to wait for, one after the other; after an error, stop them first.

        Work that must outlive the run is started in ``detached()``; all other children must stay reachable by a stop.
        """
        for child in self.run.list_children():
            if child.main is not None:
                child.main.left_behind()
            if error is None:
                for remote in child.members_of(RemoteParticipant):
                    remote.left_behind()
        if isinstance(error, (AgentStopped, *FOREIGN)):
            return  # a stop reaches them anyway, and the ladder waits for them
        while children := _live_below(self.run):
            if error is not None:
                for child in children:
                    child.stop(reason=_reason_of_failure(error))
            yield children[0]

    def _leave(self) -> None:
        # If it is left in another context than it was entered in, as in async fixtures and generators, the run still
        # ends; the other context is simply dropped.
        if self._reset is not None:
            try:  # noqa: SIM105 - contextlib.suppress would cost a tenth of a whole run
                context.current.reset(self._reset)
            except ValueError:
                pass

    def answer(self) -> Any:
        """Return the value, or raise the error for the code that awaits the run."""
        outcome = self.run.outcome
        if outcome is not None and outcome.status is _COMPLETED:
            return outcome.result
        if outcome is not None and outcome.status is Status.FAILED:
            assert outcome.error is not None, "a failed run has an error"
            raise outcome.error
        outer = context.current.get()
        here = outer.run_here()  # the caller is not in a run, so it must not get an AgentStopped
        if here is not None and self._propagating is not None and self._propagating.target != self.run.id:
            here.deliver(raised=True)  # it propagates into that run's code
            raise self._propagating
        return raise_ended(self.run, outer)


class Edge(_Edge):
    """The edge of a run that an asyncio task executes."""

    __slots__ = ()

    def open(self) -> bool:
        """Begin the run in the current task; False if it was stopped before it began."""
        participant = tasks.current()
        if participant is None:
            raise StoppableError("this needs a running asyncio task; in blocking code use `with open_run(…)`")
        self._open_in(participant)
        give_executor(participant.loop)
        return self._open(participant)

    def resume(self) -> None:
        """Continue a run in the current task that has begun elsewhere."""
        participant = tasks.current()
        assert participant is not None, "a coroutine is awaited in a task"
        self._open_in(participant)
        self.run.main = participant
        self._reset = context.current.set(self.run)

    def close_at_once(self, result: object) -> bool:
        """End a run that was not stopped and has nothing to wait for; False if it needs the full exit."""
        if self.run.first_child or self.run.closed:
            return False
        self._leave()
        self.run.end(result, None)
        return self.run.outcome is not None

    @classmethod
    def of_own_task(cls, run: RunNode, participant: tasks.TaskParticipant) -> Self:
        """Return the edge of a run that has begun in a task that was made for it."""
        edge = cls(run)
        edge.participant = participant
        edge._own_at_open = edge._foreign_at_open = 0
        edge._is_one_due = False
        return edge

    async def close(self, result: object, error: BaseException | None) -> None:
        """End the run; returns once its status is terminal, or raises a foreign exception at once."""
        if self.run.body_end is None:
            if error is not None and is_of_interrupted_command(error):
                error = await self._wait_for_ctrl_c() or error
            late = await self._wait_for_children(error) if self.run.first_child else None
            self._leave()
            stop, outsider, rest = classify(error, late)
            outsider = await self._absorb_own_cancels(outsider) or self._hidden_cancel(error)
            if self.run.closed:
                join_leftover(self.run, self.participant.loop)
            self._close(result, stop, outsider, rest)
            if outsider is not None:
                raise outsider
        if self.run.outcome is None:
            await self._wait_for_rest()

    async def _wait_for_children(self, error: BaseException | None) -> BaseException | None:
        """Wait for the children that the body left behind; return the exception that came meanwhile."""
        try:
            for child in self._left_behind(error):
                await await_end(child)
                if error is None and self.run.closed:
                    self.run.raise_stopped()
        except BaseException as caught:
            return caught
        return None

    async def _wait_for_ctrl_c(self) -> BaseException | None:
        """Return the stop that comes with the Ctrl-C that ended a command of the body, or None."""
        try:
            await sleep(_CTRL_C_SECONDS)
        except BaseException as caught:
            return caught
        return None

    async def _absorb_own_cancels(self, outsider: BaseException | None) -> BaseException | None:
        """Take back the cancels that stoppable issued, and return the foreign exception that remains (G9)."""
        participant = self.participant
        if self._is_taken_back(outsider):
            participant.own_cancels = self._own_at_open
        if not participant.is_cancelled_for(self.run, self._own_at_open):
            return outsider  # also our cancel, if it is meant for a run around this one
        if participant.uncancel_own(self._own_at_open) > isinstance(outsider, CancelledError):
            # One of our cancels may not have arrived yet. Before 3.13, uncancel() does not take it back, and it would
            # hit the caller's next await: let it arrive here.
            try:
                await asyncio.sleep(0)
            except CancelledError as late:
                participant.uncancel_own(self._own_at_open)  # a KILL may have come by now
                outsider = outsider or late
        return self._without_own(outsider)

    async def _wait_for_rest(self) -> None:
        """Wait for the terminal status: other tasks, threads or children of the run are still alive."""
        self._release_awaiting()
        try:
            await await_end(self.run)
        except CancelledError as cancel:
            if await self._absorb_own_cancels(cancel) is not None:
                raise
            # Our cancel, on behalf of an outer run: answer() passes the stop of that run on.

    def _release_awaiting(self) -> None:
        """Let runs end though tasks that took part in them are alive, if those only wait for the end of the runs.

        A framework may open a run in a helper task, and work in its context in the task that awaits the helper: each
        would wait for the other. So would this task, if it took part in a run below its own, whose body has ended.
        """
        run, own = self.run, self.participant
        for other in own.awaiters():
            if run.withdraw(other):
                run.settle()
        for below in _live_below(run):
            if below.withdraw(own):
                below.settle()
        if run.outcome is None:  # polls, because asyncio does not tell when a task begins to await another
            own.loop.call_later(_LOOK_SECONDS, self._release_awaiting)


class BlockingEdge(_Edge):
    """The edge of a run whose body is blocking code, on any thread."""

    __slots__ = ()

    def open(self, participant: Participant | None = None) -> bool:
        """Begin the run, by default on the current thread; False if it was stopped before it began."""
        participant = participant or tasks.current() or threads.current()
        if isinstance(participant, tasks.TaskParticipant):
            self._open_in(participant)
        is_open = self._open(participant)
        if is_open and isinstance(participant, threads.ThreadParticipant):
            participant.enter_edge()
        return is_open

    def close(self, result: object, error: BaseException | None) -> None:
        """End the run; returns once its status is terminal, or raises a foreign exception at once."""
        participant = self.run.main
        executing = tasks.current()
        may_wait = executing is None
        if error is not None and is_of_interrupted_command(error):
            error = self._wait_for_ctrl_c(may_wait=may_wait) or error
        late = self._wait_for_children(error, may_wait=may_wait) if self.run.first_child else None
        self._leave()
        if isinstance(participant, threads.ThreadParticipant):
            participant.leave_edge()
        stop, outsider, rest = classify(error, late)
        if executing is not None and executing is participant:
            outsider = self._absorb_own_cancels(outsider) or self._hidden_cancel(error)
        elif may_wait and isinstance(outsider, CancelledError) and self._was_cancelled():
            outsider = None  # our cancel, from a loop that the body runs: other code cannot cancel a thread
            self.run.deliver(raised=True)
        self._close(result, stop, outsider, rest)
        if outsider is not None:
            raise outsider
        if may_wait:
            wait_for_end(self.run)

    def suspend(self, waiting: Participant) -> None:
        """Leave a run that has not ended; another edge continues it."""
        self._leave()
        if isinstance(self.run.main, threads.ThreadParticipant):
            self.run.main.leave_edge()
        self.run.main = waiting

    def _wait_for_children(self, error: BaseException | None, *, may_wait: bool) -> BaseException | None:
        try:
            for child in self._left_behind(error):
                if not may_wait:
                    break
                wait_for_end(child)
                if error is None and self.run.closed:
                    self.run.raise_stopped()
        except BaseException as caught:
            return caught
        return None

    def _wait_for_ctrl_c(self, *, may_wait: bool) -> BaseException | None:
        try:
            if may_wait:
                wait_for_stop(self.run, _CTRL_C_SECONDS)
            if self.run.closed:
                self.run.raise_stopped()
        except BaseException as caught:
            return caught
        return None

    def _absorb_own_cancels(self, outsider: BaseException | None) -> BaseException | None:
        """Do what ``Edge`` does for an async block; when it ends, all cancels that stoppable issued have arrived."""
        if self._is_taken_back(outsider):
            self.participant.own_cancels = self._own_at_open
        if not self.participant.is_cancelled_for(self.run, self._own_at_open):
            return outsider
        self.participant.uncancel_own(self._own_at_open)
        return self._without_own(outsider)

    def _was_cancelled(self) -> bool:
        return self.run.rung is not None and self.run.rung >= Rung.CANCEL


def _reason_of_failure(error: BaseException) -> Reason:
    return Reason.of(f"its parent failed: {error!r}", kind=ReasonKind.PARENT)


def _begin(run: RunNode, participant: Participant) -> contextvars.Token[RunContext] | None:
    """Begin a run in the current context; None if it was stopped before it began."""
    control.ensure_started()
    outer = context.current.get()
    inner: RunContext = run
    if run.closed or isinstance(outer, shielded):
        if run.outcome is not None:
            return None  # it was given up before it began
        if isinstance(outer, shielded) and outer._is_active() and outer.run_here() is run.parent:
            inner = outer._over(run)  # a clean-up may start runs
            outer._protect(participant)
        elif run.closed:
            run.skip()
            return None
    run.begin(participant)
    return context.current.set(inner)


def raise_ended(run: RunNode, outer: RunContext) -> Never:
    """Raise what the caller of a stopped run gets: its own stop if it has one, otherwise RunStopped or RunLost."""
    if outer.closed:
        outer.raise_stopped()
    # Blocking code on an event loop's thread cannot wait for the rest of the run: it gets the status "stopping".
    outcome = run.outcome or Outcome(status=run.status, reason=run.token.reason, clean=False, partial=run.partial)
    raise (RunLost if outcome.status is Status.LOST else RunStopped)(run.id, outcome)


async def drive(
    edge: Edge,
    function: Callable[..., Awaitable[Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Execute a body inside an edge, in the current task."""
    if edge.open():
        result, error = None, None
        try:
            result = await function(*args, **kwargs)
        except BaseException as caught:
            error = caught
        try:
            if error is not None or not edge.close_at_once(result):
                await edge.close(result, error)
        finally:
            error = None  # breaks a reference cycle between the traceback and its frame


async def _drive_own(
    run: RunNode, loop: AbstractEventLoop, function: Callable[..., Awaitable[Any]], args: Any, kwargs: Any
) -> None:
    """Execute a body as a run, in a task that was made for it; the fast path without a full edge."""
    try:
        await _PAUSE
    except BaseException as gone:
        # Its task was cancelled, or its loop went away, before its first step.
        run.stop(reason=Reason.of(f"{type(gone).__name__} before it began", kind=kind(gone)))
        run.skip()
        raise
    participant = tasks.TaskParticipant(tasks.current_task(loop), loop)
    try:
        if _begin(run, participant) is not None:
            result, error = None, None
            try:
                result = await function(*args, **kwargs)
            except BaseException as caught:
                error = caught
            if run.first_child is None and (
                not run.closed if error is None else _is_plain_stop(error, run, participant)
            ):
                if run.closed:
                    join_leftover(run, loop)
                run.end(result, None)
            if run.body_end is None or run.outcome is None:
                await Edge.of_own_task(run, participant).close(result, error)
    finally:
        error = None  # breaks a reference cycle between the traceback and its frame
        participant.leave()


def in_task(
    run: RunNode, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Task[Any]:
    """Execute a body as a run, in a new task."""
    loop = asyncio.get_running_loop()
    control.follow_loop(loop)
    give_executor(loop)
    body = _drive_own(run, loop, function, args, kwargs)
    if loop.get_task_factory() is not None:
        return _in_task_of_factory(run, loop, body)
    # Up to its first suspension, so that a cancel that comes before the task's first step arrives inside it: otherwise
    # asyncio drops the coroutine unstarted and the run would have no end.
    body.send(None)
    return loop.create_task(body, name=run.name)


def _in_task_of_factory(run: RunNode, loop: AbstractEventLoop, body: Coroutine[Any, Any, None]) -> Task[Any]:
    """Execute a body with a custom task factory, which may need a coroutine that has not begun."""

    def on_done(_: Task[Any]) -> None:
        if run.started_at is None and run.outcome is None:  # its task was dropped before its first step
            body.close()
            run.stop(reason=Reason.of("its task was cancelled before it began", kind=ReasonKind.EXTERNAL))
            run.skip()

    task = loop.create_task(body, name=run.name)
    task.add_done_callback(on_done)
    return task


class _Pause(tuple[None]):
    """An awaitable that suspends once; uses C code, because every task of a run begins with it."""

    __slots__ = ()

    __await__: Any = tuple.__iter__


_PAUSE = _Pause([None])


def _is_plain_stop(error: BaseException, run: RunNode, participant: tasks.TaskParticipant) -> bool:
    """Return whether a body ended with its own delivered stop, and its task was not cancelled."""
    return (
        isinstance(error, AgentStopped)
        and error.target == run.id
        and run.noticed
        and not participant.own_cancels
        and not participant.task.cancelling()
    )


def _live_below(run: RunNode) -> list[RunNode]:
    """Return the nearest live descendants: a child on a loop's thread ends before its own children."""
    live: list[RunNode] = []
    nodes = run.list_children()
    for node in nodes:
        if node.outcome is None:
            live.append(node)
        else:
            nodes += node.list_children()
    return live
