"""Plain processes as participants, pools of them, and the ways in which plain code starts them.

The processes of a pool belong to the run that created it. In a pool that the run did not create, only the call
takes part. The callbacks of a call belong to the run in any pool.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar, Token
from typing import Any, cast

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.context import DETACHED, FORKED, Outside, RunContext
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant, lock
from stoppable._core.values import Fate, Rung, new_id
from stoppable._engine.executors import call_in_run, callback_in_run
from stoppable._engine.instrumentation import scopes, threads, user_code
from stoppable._engine.instrumentation.patches import is_on
from stoppable._engine.processes import table
from stoppable._engine.processes.adopted import Family, watcher
from stoppable._engine.processes.group import Force
from stoppable.errors import AgentStopped

_SHORT, _LONG = 0.02, 0.2

_spared_programs: tuple[str, ...] = ()


def spare(programs: Iterable[str]) -> None:
    """Set the shared programs to leave alone, as prefixes of their names."""
    global _spared_programs
    _spared_programs = tuple(programs)


class Processes(Participant):
    """The plain processes of one run and of the runs below it, with everything they started.

    A run has up to two of these: processes of its clean-up are separate, because only KILL ends them.
    """

    __slots__ = (
        "_cut",
        "_family",
        "_force",
        "_is_clear",
        "_is_term_sent",
        "_kills",
        "_last_found",
        "_open",
        "_pause",
        "_run",
        "id",
        "is_cleanup",
    )

    def __init__(self, run: RunNode, *, is_cleanup: bool) -> None:
        self.id = new_id()
        self.is_cleanup = is_cleanup
        self._run = run
        self._family = Family(self.id, _spared_programs)
        self._open: dict[Boundary, int | None] = {}  # the processes that this run's code started, with their pids
        self._force = Force.NONE
        self._is_term_sent = False  # TERM was sent; only once, because a second one would interrupt clean-up
        self._is_clear = False  # the run's body has ended, and a complete search has found no process
        self._cut: set[int] = set()  # the processes that were signalled
        self._pause = 0.0
        self._last_found: list[int] = []  # the processes that the last search found
        self._kills = 0  # the searches with KILL whose result was acted on

    @classmethod
    def of(cls, run: RunNode, *, is_cleanup: bool) -> Processes:
        """Return the processes of a run, or of its clean-up."""
        with lock:
            for existing in run.members_of(cls):
                if existing.is_cleanup is is_cleanup:
                    return existing
            processes = cls(run, is_cleanup=is_cleanup)
            run.admit(processes)
            return processes

    # As a participant

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Send TERM at CANCEL, except to processes of clean-up, and KILL at KILL."""
        for processes in targets:
            assert isinstance(processes, cls)
            if rung > Rung.CANCEL:
                processes._force = Force.KILL
            elif not processes.is_cleanup:
                processes._force = max(processes._force, Force.TERM)
            watcher.call(processes._look)

    def alive(self) -> bool:
        """Return whether any of them is alive; after a stop this includes processes that they left behind."""
        if self._open:
            return True
        if self._run.first_stop is None or self._is_clear:
            return False
        watcher.call(self._look)  # it settles the run when no process is left
        return True

    def has_looked(self) -> bool:
        """Return whether they were searched again after the search that killed them."""
        return self._force is not Force.KILL or self._kills > 1

    def describe(self) -> str:
        """Name the processes."""
        # As the last search found them: another one here would disturb that of the watcher's thread.
        pids = sorted({*self._last_found, *(pid for pid in list(self._open.values()) if pid is not None)})
        names = ", ".join(f"{pid} ({table.name(pid)})" for pid in pids)
        return f"processes {names or 'whose end could not be proven'}"

    # How they begin and end

    def begin(self, effect: Boundary) -> None:
        """Add a process that is about to be started."""
        self._open[effect] = None
        self._is_clear = False
        effect.holder = self
        self._run.admit(self)  # it may just have been withdrawn because no process was found

    def follow(self, effect: Boundary, pid: int) -> None:
        """Follow a process that was started."""
        self._open[effect] = pid
        self._family.add(pid)
        watcher.watch(pid, lambda: self.note_end(effect))
        # Register first, then read the rung: either CANCEL and KILL find the process, or this sees them. It may have
        # been found by its cookie, and be dead already. Only the watcher's thread signals, so it knows that.
        rung = self._run.rung
        if rung is not None and rung >= Rung.CANCEL:
            self.climb(rung, {self: self._run})

    def note_end(self, effect: Boundary, error: type[BaseException] | None = None) -> None:
        """Record that a process has ended, or was not started."""
        if self._open.get(effect) in self._cut:
            error = asyncio.CancelledError
        # It counts as alive until it leaves the boundary, which records its fate: the run must not end before that.
        effect.__exit__(error, None, None)
        del self._open[effect]
        if self._run.body_end is not None:
            self._run.settle()

    def _look(self) -> float | None:
        """Send pending signals, and check whether any process is left; on the watcher's thread."""
        pause = self._search()
        self._kills = self._family.kills  # only now: a run whose processes are gone has ended
        return pause

    def _search(self) -> float | None:
        if self._force is Force.KILL:
            # Repeatedly: a process may have been forked meanwhile.
            left, signalled = self._family.strike(signal.SIGKILL)
            self._cut.update(signalled)
        elif self._force is Force.TERM:
            left = self._terminate()
        elif self._run.body_end is None or self._open:
            return None  # this is called again when the body or one of them ends
        else:
            left = self._family.find()
        self._last_found = left
        if left or self._open or not self._family.is_gone:
            is_urgent = self._force is Force.KILL or not left
            self._pause = min(self._pause * 2 + 0.001, _SHORT if is_urgent else _LONG)
            return self._pause
        if self._run.body_end is not None:
            self._is_clear = True
            self._run.withdraw(self)
            self._run.settle()
        return None

    def _terminate(self) -> list[int]:
        """Send TERM to all processes, and later only to new orphans of processes that have ended.

        Each gets it once, because a second TERM would interrupt clean-up. Processes that a live one starts for its
        clean-up are left alone.
        """
        if not self._is_term_sent:
            self._is_term_sent = True
            left, signalled = self._family.strike(signal.SIGTERM)
            self._cut.update(signalled)
            self._pause = 0.0
            return left
        left = self._family.find()
        for pid in left:
            is_new = pid not in self._cut and self._family.parents.get(pid) not in left
            if is_new and self._family.signal(pid, signal.SIGTERM):
                self._cut.add(pid)
        return left


class ProcessStart:
    """A process that plain code is about to start; enters its boundary and makes its cookies."""

    def __init__(self, scope: RunContext, name: str) -> None:
        run = scope.run_here()
        assert run is not None, "started in a run"
        self._boundary = scopes.enter(scope, "spawn", name, is_look=True)
        is_cleanup = scopes.is_cleanup(scope)
        # A stop of any surrounding run must find the processes that this one leaves behind.
        runs = [run, *(outer for outer in run.lineage() if outer is not run and outer.outcome is None)]
        everyone = [Processes.of(each, is_cleanup=is_cleanup) for each in runs]
        self._processes = everyone[0]
        self._run_id = run.id
        self._cookies = [each.id for each in reversed(everyone)]
        self._processes.begin(self._boundary)

    def environment(self, base: Mapping[str, str] | None) -> dict[str, str]:
        """Return the environment of the process, with the cookies that find it and everything it starts."""
        # Without the variable that identifies the worker: processes that a completed run leaves behind may outlive it.
        return table.environment(base, self._run_id, ":".join(self._cookies), None)

    @contextlib.contextmanager
    def marking_forks(self) -> Iterator[None]:
        """Make a process that the block forks, and all forks of it, bear the cookies."""
        table.expect_fork()
        reset = _start_of_fork.set(self)
        try:
            yield
        finally:
            _start_of_fork.reset(reset)

    def mark(self) -> None:
        """Mark this process, which was just forked: its children inherit the environment, its forks the marks."""
        os.environ.update(self.environment({}))
        for cookie in self._cookies:
            table.mark_fork(cookie)

    def follow(self, pid: int) -> None:
        """Follow the process."""
        self._processes.follow(self._boundary, pid)

    def note_failure(self, error: BaseException) -> None:
        """Record that the process was not started."""
        self._processes.note_end(self._boundary, type(error))


_start_of_fork: ContextVar[ProcessStart | None] = ContextVar("stoppable-start-of-fork", default=None)


def _mark_fork() -> None:
    start = _start_of_fork.get()
    if start is not None:
        _start_of_fork.set(None)  # its own forks inherit the marks
        start.mark()


# At the fork, before any code of the user can fork again: a second fork would be known by nothing else.
os.register_at_fork(after_in_child=_mark_fork)


_get, _set = context.current.get, context.current.set
_ENV = 9  # the index of `env` in Popen's positional arguments after the first


def _scope_here() -> RunContext | None:
    return None if type(_get()) is Outside or not is_on() else scopes.current()


class _OnlyInRuns:
    """A method that is the original outside runs, without a frame of ours: a warning then names the caller's line."""

    def __init__(self, original: Callable[..., None], inside: Callable[..., None]) -> None:
        functools.update_wrapper(cast("Any", self), original)
        self._original, self._inside = original, inside

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method: Any = self._original if _scope_here() is None else self._inside
        return method.__get__(instance, owner)


def popen_of(original: Callable[..., None]) -> _OnlyInRuns:
    """Return a ``Popen.__init__`` whose processes take part in the run; asyncio uses it too."""

    @functools.wraps(original)
    def init(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        scope = _scope_here()
        if scope is None:
            original(self, args, *rest, **options)
            return
        start = ProcessStart(scope, _program(args))
        if len(rest) > _ENV:
            rest = (*rest[:_ENV], start.environment(rest[_ENV]), *rest[_ENV + 1 :])
        else:
            options["env"] = start.environment(options.get("env"))
        try:
            original(self, args, *rest, **options)
        except BaseException as error:
            start.note_failure(error)
            raise
        start.follow(self.pid)

    return _OnlyInRuns(original, init)


def _program(args: Any) -> str:
    """Return the name under which a command is listed: that of its program."""
    if not isinstance(args, str | bytes | os.PathLike):
        args = next(iter(args), "")
    try:
        words = os.fsdecode(args).split(None, 1)
    except TypeError:
        return "?"  # Popen will refuse it
    return os.path.basename(words[0]) if words else "?"  # noqa: PTH119 - it need not be a path


def uvloop_spawn_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``subprocess_exec`` or ``subprocess_shell`` for uvloop whose processes take part in the run."""

    @functools.wraps(original)
    async def spawn(self: Any, protocol_factory: Any, program: Any, *args: Any, **options: Any) -> Any:
        scope = _scope_here()
        if scope is None:
            return await original(self, protocol_factory, program, *args, **options)
        start = ProcessStart(scope, _program([program]))
        options["env"] = start.environment(options.get("env"))
        try:
            transport, protocol = await original(self, protocol_factory, program, *args, **options)
        except BaseException as error:
            start.note_failure(error)  # if it was cancelled half-way, the process is found by its cookie
            raise
        start.follow(transport.get_pid())
        return transport, protocol

    return spawn


def fork_of(original: Callable[[], int]) -> Callable[[], int]:
    """Return an ``os.fork`` whose processes take part in the run."""

    @functools.wraps(original)
    def fork() -> int:
        pid: int = _forked(original, lambda pid: pid)
        return pid

    return fork


def forkpty_of(original: Callable[[], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
    """Return an ``os.forkpty`` whose processes take part in the run; ``pty`` and libraries based on it use it."""

    @functools.wraps(original)
    def forkpty() -> tuple[int, int]:
        pair: tuple[int, int] = _forked(original, lambda pair: pair[0])
        return pair

    return forkpty


def _forked(original: Callable[[], Any], pid_of: Callable[[Any], int]) -> Any:
    scope = _scope_here()
    if scope is None:
        return original()
    start = ProcessStart(scope, "fork")
    try:
        with start.marking_forks():
            result = original()
    except BaseException as error:
        start.note_failure(error)
        raise
    if pid_of(result) == 0:
        _set(FORKED)
    else:
        start.follow(pid_of(result))
    return result


def process_start_of(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``multiprocessing.Process.start`` whose processes take part in the run, with any start method."""

    @functools.wraps(original)
    def start(self: Any) -> None:
        scope: RunContext | None = _scope_here()
        if scope is None and is_on():
            scope = threads.run_of_pool()
        if scope is None:
            original(self)
            return
        process = ProcessStart(scope, self.name)
        # A forked process has no run, and multiprocessing's own servers, which this may start, belong to none.
        reset: Token[RunContext] = _set(FORKED)
        try:
            with process.marking_forks():
                original(self)
        except BaseException as error:
            process.note_failure(error)
            raise
        finally:
            context.current.reset(reset)
        process.follow(self.pid)

    return start


_owners: weakref.WeakKeyDictionary[Any, RunNode] = weakref.WeakKeyDictionary()


class _PoolFuture(Future[Any]):
    """The future of a call that may have been cancelled when its pool breaks.

    Before 3.13, a pool whose processes end meanwhile fails at such a future, and leaves the others without a result.
    """

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error of the call, unless it was cancelled."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            super().set_exception(exception)


class PoolCall(Participant):
    """A call in a process pool; CANCEL and KILL cancel it if it has not begun."""

    __slots__ = ("_boundary", "_future", "_is_over", "_pool")

    def __init__(self, scope: RunContext, name: str | None, pool: Any) -> None:
        self._is_over = False
        self._pool: weakref.ref[Any] = weakref.ref(pool)
        self._future: Future[Any] | None = None
        self._boundary = scopes.enter(scope, "spawn", name)
        self._boundary.holder = self

    def follow(self, future: Future[Any]) -> None:
        """Record the end of the call when its future is done."""
        if type(future) is Future:
            future.__class__ = _PoolFuture
        self._future = future
        future.add_done_callback(self._on_done)

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:  # noqa: ARG003 - both rungs do the same
        """Cancel the call if it has not begun."""
        for call in targets:
            assert isinstance(call, cls)
            if call._future is not None:
                call._future.cancel()

    def alive(self) -> bool:
        """Return whether the call has not ended."""
        return not self._is_over

    def describe(self) -> str:
        """Name the call."""
        return f"call of {self._boundary.name} in a pool of processes"

    def _on_done(self, future: Future[Any]) -> None:
        if future.cancelled():
            self.skip()
            return
        error = future.exception()
        run = self._boundary._run
        is_forced = run is not None and run.rung is not None and run.rung >= Rung.CANCEL
        if not (is_forced and isinstance(error, concurrent.futures.BrokenExecutor)):
            self.end(type(error))
        elif self._has_begun(future):
            self.end(asyncio.CancelledError)  # it died with its process
        else:
            self.skip()

    def _has_begun(self, future: Future[Any]) -> bool:
        """Return whether a process had begun a call when the pool broke: they begin in the order of the calls."""
        pool = self._pool()
        if pool is None:
            return True
        waiting = [item.future for item in list(pool._pending_work_items.values())]
        return future not in waiting[pool._max_workers :]

    def end(self, error: type[Any] | None) -> None:
        """Record that the call has ended."""
        kind = error if error is not None and issubclass(error, BaseException) else None
        self._boundary.__exit__(kind, None, None)
        self._is_over = True

    def skip(self) -> None:
        """Record that the call has not begun, and never will."""
        run = self._boundary._run
        assert run is not None, "it is open"
        self._boundary._fate = Fate.SKIPPED
        self._is_over = True
        self._boundary._skip()
        if run.sink is not None:
            run.sink.left(run, self._boundary)
        if run.body_end is not None:
            run.settle()


class _CallOutside(PoolCall):
    """A call in a ``multiprocessing.Pool``, which cannot be taken back."""

    __slots__ = ()

    def alive(self) -> bool:
        """Return whether the call has not ended, nor the pool."""
        pool = self._pool()
        return super().alive() and pool is not None and pool._state != "TERMINATE"


class _Results(dict[int, Any]):
    """What a result knows of the pool's results: it takes itself out when the call has ended."""

    def __init__(self, results: dict[int, Any], call: PoolCall) -> None:
        super().__init__()
        self._results = results
        self._call = call

    def __delitem__(self, job: int) -> None:
        self._results.pop(job, None)
        self._call.end(None)


def pool_init_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for a pool of processes that remembers the run which created the pool."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        run = context.current_node()
        if run is not None and is_on():
            _owners[self] = run

    return init


def pool_submit_of(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    """Return a ``ProcessPoolExecutor.submit`` whose calls take part in the run."""

    @functools.wraps(original)
    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if type(_get()) is Outside or not is_on() or (scope := scopes.current()) is None:
            return original(self, fn, *args, **kwargs)
        call = PoolCall(scope, user_code.name_of(fn), self)
        owner = _owners.get(self)
        reset = _set(scope if owner is scope.run_here() else DETACHED if owner is None or owner.closed else owner)
        try:
            future = original(self, fn, *args, **kwargs)
        except BaseException as error:
            call.end(type(error))
            raise
        finally:
            context.current.reset(reset)
        call.follow(future)
        return future

    return submit


def pool_method_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method for ``multiprocessing.pool.Pool`` whose calls take part in the run."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Any, func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if type(_get()) is Outside or not is_on() or (scope := scopes.current()) is None:
            return original(self, func, *args, **options)
        bound = signature.bind(self, func, *args, **options)
        for name in ("callback", "error_callback"):
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = callback_in_run(bound.arguments[name])
        if not _is_of_threads(self):
            return _call_outside(self, scope, functools.partial(original, *bound.args, **bound.kwargs), func)
        if call_in_run(func, (), {}) is not None:
            bound.arguments["func"] = _Call(scope, func)
        return original(*bound.args, **bound.kwargs)

    return method


class _Submission(threading.local):
    call: PoolCall | None = None
    """The call that is being submitted."""


_submission = _Submission()


def _call_outside(pool: Any, scope: RunContext, submit: Callable[[], Any], func: Callable[..., Any]) -> Any:
    """Submit a call to a pool of processes; in a pool that the run or one around it made, the processes take part."""
    run = scope.run_here()
    assert run is not None, "submitted in a run"
    if any(_owners.get(pool) is each for each in run.lineage()):
        scopes.check_in(scope)
        return submit()
    outer, _submission.call = _submission.call, _CallOutside(scope, user_code.name_of(func), pool)
    try:
        return submit()
    except BaseException as error:
        if _submission.call is not None:
            _submission.call.end(type(error))
        raise
    finally:
        _submission.call = outer


def pool_result_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return an ``__init__`` for a result of a ``multiprocessing.Pool`` that reports the end of its call."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        call = _submission.call
        if call is not None:
            self._cache = _Results(self._cache, call)

    return init


def _is_of_threads(pool: Any) -> bool:
    return any(cls.__name__ == "ThreadPool" for cls in type(pool).__mro__)


class _Call:
    """A function whose calls take part in the run, for pool threads, which do not survive a BaseException."""

    def __init__(self, scope: RunContext, function: Callable[..., Any]) -> None:
        self._scope = scope
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with scopes.performing(self._scope):
                call = call_in_run(self.__wrapped__, args, kwargs)
                return self.__wrapped__(*args, **kwargs) if call is None else call()
        except AgentStopped as stop:
            # Raise an Exception: after a BaseException the pool would wait for the result for ever.
            raise concurrent.futures.CancelledError(str(stop)) from stop
