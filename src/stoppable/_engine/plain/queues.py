"""Items of queues: a thread that takes one works for the run that put it in."""

from __future__ import annotations

import collections
import functools
import queue
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from stoppable._core import context
from stoppable._core.context import Outside
from stoppable._core.node import RunNode
from stoppable._engine.plain import scopes
from stoppable._engine.plain.patches import is_on

_get = context.current.get
_RUNS = "_stoppable_runs"
"""The attribute of a queue that says which runs put its items in, by the identity of the item."""
_lock = threading.Lock()


class Worker(Protocol):
    """A thread that takes items from queues."""

    def is_current(self) -> bool: ...

    def wait(self, *, can_wake_itself: bool) -> None: ...

    def take(self, origin: RunNode | None) -> None: ...

    def go_on(self) -> None: ...


class _Here(threading.local):
    worker: Worker | None = None


_here = _Here()


class serving:  # noqa: N801 - reads as a statement
    """Makes the calling thread a worker for the block."""

    __slots__ = ("_worker",)

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def __enter__(self) -> None:
        _here.worker = self._worker

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        _here.worker = None


def put_of(original: Callable[..., None]) -> Callable[..., None]:
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


def get_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``Queue.get`` that makes the thread of a run work for the run that put the item in."""

    @functools.wraps(original)
    def get(self: Any, block: bool = True, timeout: float | None = None) -> Any:  # noqa: FBT001, FBT002 - as in queue
        worker = _here.worker
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
