"""Plain threads: those that take part in a run, what they take from queues, and those of libraries.

A thread that executes a library's code starts without the context of the run, and no stop waits for it; if it is alive
when its run ends, it is listed in the receipt. A thread that takes an item from a queue works for the run that put it
in.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from stoppable._core import context
from stoppable._core.boundary import Boundary
from stoppable._core.context import DETACHED, Outside, RunContext, detached
from stoppable._core.hooks import Callback, Moment
from stoppable._core.node import RunNode
from stoppable._core.participants import Participant
from stoppable._core.values import Rung
from stoppable._engine import tasks
from stoppable._engine.instrumentation import scopes, user_code
from stoppable._engine.instrumentation.patches import is_on
from stoppable._engine.source_lines import describe_thread, frames_of_thread, lines
from stoppable.errors import AgentStopped

_get, _set = context.current.get, context.current.set

_MOST = 20
_LONGEST = 120
_POOLS = ("multiprocessing.pool", "concurrent.futures.process")
_has_pools = False


class _Origin(NamedTuple):
    """Where a library thread was started; the reference to the run is weak, because the thread may live much longer."""

    run: weakref.ref[RunNode]
    within: frozenset[str]
    """The ids of that run and its ancestors."""
    label: str
    keeps_pool: bool


_origins: weakref.WeakKeyDictionary[threading.Thread, _Origin] = weakref.WeakKeyDictionary()


def start_library_thread(
    original: Callable[[threading.Thread], None], thread: threading.Thread, scope: RunContext
) -> None:
    """Start a library thread without the context of the run."""
    global _has_pools
    run = scope.run_here()
    assert run is not None, "started in a run"
    module = user_code.module_of_thread(thread)
    keeps_pool = module in _POOLS
    note_library_thread(thread, run, keeps_pool=keeps_pool)
    if keeps_pool:
        _has_pools = True
        thread.run = functools.partial(_until_stopped, thread.run)  # type: ignore[method-assign]
    with detached():
        original(thread)


def note_library_thread(thread: threading.Thread, run: RunNode, *, keeps_pool: bool = False) -> None:
    """List a thread in the receipt of a run, if it is alive when the run ends."""
    module = user_code.module_of_thread(thread)
    if thread not in _origins and not module.startswith(user_code.OURS):
        within = frozenset(each.id for each in run.lineage())
        _origins[thread] = _Origin(weakref.ref(run), within, f"{thread.name} ({module})"[:_LONGEST], keeps_pool)


def _until_stopped(run: Callable[[], None]) -> None:
    with contextlib.suppress(AgentStopped):
        run()


def run_of_pool() -> RunNode | None:
    """Return the run whose pool the calling thread maintains; processes that it restarts belong to that run too."""
    if not _has_pools:
        return None
    origin = _origins.get(threading.current_thread())
    run = origin.run() if origin is not None and origin.keeps_pool else None
    return None if run is None or (run.outcome is not None and run.first_stop is None) else run


def library_threads_in(run: RunNode) -> tuple[str, ...]:
    """Return the names of the threads that were started in a run or below it and are alive; at most twenty."""
    if not _origins:
        return ()
    # keyrefs, because other code may start threads meanwhile
    labels = sorted(filter(None, (_label(ref(), run) for ref in _origins.keyrefs())))
    return tuple(labels) if len(labels) <= _MOST else (*labels[:_MOST], f"and {len(labels) - _MOST} more")


def _label(thread: threading.Thread | None, run: RunNode) -> str | None:
    origin = _origins.get(thread) if thread is not None and thread.is_alive() else None
    return origin.label if origin is not None and run.id in origin.within else None


_RUNS = "_stoppable_runs"
"""The attribute of a queue that says which runs put its items in, by the identity of the item."""
_lock = threading.Lock()


class _CurrentThread(threading.local):
    worker: UserThread | None = None


_current = _CurrentThread()


class _serving:  # noqa: N801 - reads as a statement
    """Makes the calling thread a worker for the block."""

    __slots__ = ("_worker",)

    def __init__(self, worker: UserThread) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        _current.worker = self._worker

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _current.worker = None


def queue_put_of(original: Callable[..., None]) -> Callable[..., None]:
    """Return a ``Queue.put`` that remembers the run which puts an item in."""

    @functools.wraps(original)
    def put(self: Any, item: Any, *args: Any, **options: Any) -> None:
        if type(_get()) is Outside or not is_on() or (scope := scopes.current()) is None:
            original(self, item, *args, **options)
            return
        run = scope.run_here()
        assert run is not None, "a scope of a run"
        with _lock:  # before the item can be taken
            runs = vars(self).setdefault(_RUNS, {}).setdefault(id(item), collections.deque())
            runs.append(weakref.ref(run))
        try:
            original(self, item, *args, **options)
        except BaseException:
            _take_origin(self, item)
            raise

    return put


def queue_get_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``Queue.get`` that makes the thread of a run work for the run that put the item in."""

    @functools.wraps(original)
    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - as in queue
        worker = _current.worker
        if worker is None or not is_on() or not worker.is_current():
            item = original(self, block, timeout)
            _take_origin(self, item)
            return item
        try:
            item = original(self, False)  # noqa: FBT003 - as in queue
        except queue.Empty:
            if not block:
                raise
            worker.wait(can_wake_itself=timeout is not None)
            try:
                item = original(self, block, timeout)
            except BaseException:
                worker.go_on()
                raise
        worker.take(_take_origin(self, item))
        return item

    return get


def _take_origin(source: Any, item: Any) -> RunNode | None:
    """Return the run that put an item in, and forget it."""
    origins: dict[int, collections.deque[weakref.ref[RunNode]]] | None = vars(source).get(_RUNS)
    if not origins:
        return None
    with _lock:
        runs = origins.get(id(item))
        if not runs:
            return None
        origin = runs.popleft()
        if not runs:
            del origins[id(item)]
    return origin()


class PlainThread(Participant):
    """A thread that works for a run; it cannot be ended from outside (N3), but a task that it runs to its end can."""

    __slots__ = ("_boundary", "_is_over", "_run", "_thread")

    def __init__(self, thread: threading.Thread, run: RunNode, effect: Boundary | None) -> None:
        self._thread = thread
        self._run = run
        self._boundary = effect
        self._is_over = False
        if effect is None:
            run.admit(self)
        else:
            effect.holder = self

    @classmethod
    def climb(cls, rung: Rung, targets: Mapping[Participant, RunNode]) -> None:
        """Cancel the task for which a thread runs an event loop. Otherwise its next boundary raises, or it is lost."""
        threads = ((participant._thread, run) for participant, run in targets.items() if isinstance(participant, cls))
        tasks.cancel_main_tasks(rung, threads)

    def alive(self) -> bool:
        """Return whether it still works for the run."""
        return not self._is_over and (self._thread.ident is None or self._thread.is_alive())

    def describe(self) -> str:
        """Return the user's own line, then the thread."""
        return describe_thread(self._thread)

    def stack(self) -> tuple[str, ...]:
        """Return its stack, innermost first."""
        return lines(frames_of_thread(self._thread))

    def end(self, error: type[BaseException] | None = None) -> None:
        """Record that it has ended, or works for the run no more."""
        # It counts as alive until it leaves the boundary, which records its fate: the run must not end before that.
        if self._boundary is not None:
            self._boundary.__exit__(error, None, None)
            self._is_over = True
        else:
            self._is_over = True
            self._run.withdraw(self)
            self._run.settle()


class _StopHook(Callback):
    """What instrument() does at a stop; the run's own code knows nothing of it."""

    __slots__ = ()

    is_look = False


class UserThread:
    """A thread that a run's code started, and the run that it works for at the moment: at first, the run itself.

    If it takes its work from a queue, it serves whoever puts something in: it works for the run that put an item, until
    it takes the next one. While it waits for that without a time-out, it works for nobody, because only others can wake
    it. So a worker that one run started, and that all use, outlives that run.
    """

    def __init__(self, thread: threading.Thread, home: RunContext) -> None:
        self.thread = thread
        self.scope = self._home = scopes.own(home)
        self._is_shared = False
        self._stint: PlainThread | None = PlainThread(thread, _run_of(home), scopes.enter(home, "thread", thread.name))
        self._hook = _StopHook(_run_of(home), Moment.STOP, self._look)
        _run_of(home).add_hook(self._hook)

    def is_current(self) -> bool:
        """Return whether its own code calls, not that of another run or of a shield inside it."""
        return _get() is self.scope

    def wait(self, *, can_wake_itself: bool) -> None:
        """Note that it is about to wait for an item of a queue."""
        note_library_thread(self.thread, _run_of(self._home))
        if self._is_shared or not can_wake_itself:
            self._work_for(None)

    def take(self, origin: RunNode | None) -> None:
        """Note that it has taken an item, and which run had put it into the queue."""
        home = _run_of(self._home)
        if origin is not None:
            self._is_shared = self._is_shared or not origin.is_within(home)
            self._work_for(scopes.later(origin))
        else:
            is_home = not self._is_shared and home.outcome is None and not home.closed
            self._work_for(self._home if is_home else None)

    def go_on(self) -> None:
        """Note that it has waited for an item in vain."""
        self._work_for(None if self._is_shared else scopes.later(self._home))

    def _work_for(self, scope: RunContext | None) -> None:
        """Work for a run, which may be stopped by now, or for nobody."""
        run = None if scope is None else _run_of(scope)
        stint = self._stint
        if stint is None or stint._run is not run:
            # First the new run, then the old one: a thread that works is never seen to work for nobody.
            self._stint = None if scope is None else self._begin(scope)
            if stint is not None:
                stint.end()
        self.scope = DETACHED if scope is None else scopes.OnForeignThread(scope)
        _set(self.scope)

    def _begin(self, scope: RunContext) -> PlainThread | None:
        run = _run_of(scope)
        try:
            effect = scopes.enter(scope, "thread", self.thread.name)
        except AgentStopped:
            return None if run.outcome is not None else PlainThread(self.thread, run, None)
        return PlainThread(self.thread, run, effect)

    def _look(self) -> None:
        """At the stop, leave a thread alone that runs an event loop or a server for everybody."""
        if tasks.main_task(self.thread) is None and any(map(user_code.is_server, frames_of_thread(self.thread))):
            note_library_thread(self.thread, _run_of(self._home))
            self.end()

    def end(self, error: type[BaseException] | None = None) -> None:
        """Record that it has ended."""
        self._hook.remove()
        stint, self._stint = self._stint, None
        if stint is not None:
            stint.end(error)


def _run_of(scope: RunContext) -> RunNode:
    run = scope.run_here()
    assert run is not None, "a scope of a run"
    return run


def start_of(original: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return a ``Thread.start`` whose threads take part in the run, if they work for the user's code."""

    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        scope: Any = _get()
        if type(scope) is Outside or not is_on() or (scope := scopes.current()) is None or self._started.is_set():  # type: ignore[attr-defined]
            original(self)
        elif user_code.is_users_thread(self, sys._getframe(1)):
            _start(original, self, scope)
        elif user_code.is_worker_of_pool(self):
            _start_of_pool(original, self, scope)
        else:
            start_library_thread(original, self, scope)

    return start


def _start(original: Callable[[threading.Thread], None], thread: threading.Thread, scope: RunContext) -> None:
    worker = UserThread(thread, scope)
    inner = thread.run

    def run() -> None:
        kind = None
        try:
            with scopes.performing(worker.scope), _serving(worker):
                inner()
        except AgentStopped:
            pass  # it ended because of the stop, so there is nothing to report
        except asyncio.CancelledError:
            if not _run_of(scope).closed:  # otherwise CANCEL ended the task that it ran
                raise
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            vars(thread).pop("run", None)
            if kind is None:
                worker.end()

    _guard_hook(worker)
    if isinstance(thread, threading.Timer):
        _guard_timer(thread, scope)
    thread.run = run  # type: ignore[method-assign]
    try:
        original(thread)
    except BaseException:
        vars(thread).pop("run", None)
        worker.end()
        raise


def _guard_hook(worker: UserThread) -> None:
    """Make ``threading.excepthook`` a part of the thread that failed."""
    original = worker.thread._invoke_excepthook  # type: ignore[attr-defined]

    def invoke(thread: threading.Thread) -> None:
        kind = sys.exc_info()[0]
        try:
            with scopes.performing(worker.scope), contextlib.suppress(AgentStopped):
                original(thread)
        finally:
            worker.end(kind)

    worker.thread._invoke_excepthook = invoke  # type: ignore[attr-defined]


def _guard_timer(timer: threading.Timer, scope: RunContext) -> None:
    """Cancel a timer at the stop."""
    run = _run_of(scope)
    function = timer.function

    @functools.wraps(function)
    def act(*args: Any, **kwargs: Any) -> Any:
        hook.remove()
        scopes.check_in(scope)
        return function(*args, **kwargs)

    timer.function = act
    hook = _StopHook(run, Moment.STOP, timer.cancel)
    run.add_hook(hook)


def _start_of_pool(original: Callable[[threading.Thread], None], thread: threading.Thread, scope: RunContext) -> None:
    """Start a thread of a pool, which belongs to nobody; the initializer that it calls takes part in the run."""
    args: tuple[Any, ...] = vars(thread)["_args"]
    place = next((number for number, value in enumerate(args) if callable(value) and user_code.is_users(value)), None)
    if place is None:
        start_library_thread(original, thread, scope)
        return
    initializer = _Initializer(thread, scope, args[place])
    vars(thread)["_args"] = (*args[:place], initializer, *args[place + 1 :])
    try:
        start_library_thread(original, thread, scope)
    except BaseException as error:
        initializer.end(type(error))
        raise


class _Initializer:
    """The user's initializer of a pool: in flight from the start of the thread until it returns.

    It is completed though the run is stopped, up to KILL: a pool whose initializer fails is broken for everybody.
    """

    def __init__(self, thread: threading.Thread, scope: RunContext, function: Callable[..., object]) -> None:
        self._scope = scopes.to_the_end(scope)
        self._function = function
        self._part = PlainThread(thread, _run_of(scope), scopes.enter(scope, "thread", user_code.name_of(function)))

    def __call__(self, *args: Any) -> None:
        kind = None
        try:
            with scopes.performing(scopes.OnForeignThread(self._scope)):
                self._function(*args)
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            self.end(kind)

    def end(self, error: type[BaseException] | None) -> None:
        """Record that it has ended."""
        self._part.end(error)
