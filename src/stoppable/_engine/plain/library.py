"""Threads that execute a library's code: they start without the run's context, and no stop waits for them.

Those that are alive when their run ends are listed in its receipt.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

from stoppable._core.context import RunContext, detached
from stoppable._core.node import RunNode
from stoppable._engine.plain import whose
from stoppable.errors import AgentStopped

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


def start(original: Callable[[threading.Thread], None], thread: threading.Thread, scope: RunContext) -> None:
    """Start a library thread without the context of the run."""
    global _has_pools
    run = scope.run_here()
    assert run is not None, "started in a run"
    module = whose.module_of_thread(thread)
    keeps_pool = module in _POOLS
    note(thread, run, keeps_pool=keeps_pool)
    if keeps_pool:
        _has_pools = True
        thread.run = functools.partial(_until_stopped, thread.run)  # type: ignore[method-assign]
    with detached():
        original(thread)


def note(thread: threading.Thread, run: RunNode, *, keeps_pool: bool = False) -> None:
    """List a thread in the receipt of a run, if it is alive when the run ends."""
    module = whose.module_of_thread(thread)
    if thread not in _origins and not module.startswith(whose.OURS):
        within = frozenset(each.id for each in run.lineage())
        _origins[thread] = _Origin(weakref.ref(run), within, f"{thread.name} ({module})"[:_LONGEST], keeps_pool)


def _until_stopped(run: Callable[[], None]) -> None:
    with contextlib.suppress(AgentStopped):
        run()


def pool_of_run() -> RunNode | None:
    """Return the run whose pool the calling thread maintains; processes that it restarts belong to that run too."""
    if not _has_pools:
        return None
    origin = _origins.get(threading.current_thread())
    run = origin.run() if origin is not None and origin.keeps_pool else None
    return None if run is None or (run.outcome is not None and run.first_stop is None) else run


def alive_in(run: RunNode) -> tuple[str, ...]:
    """Return the names of the threads that were started in a run or below it and are alive; at most twenty."""
    if not _origins:
        return ()
    # keyrefs, because other code may start threads meanwhile
    found = sorted(filter(None, (_label(ref(), run) for ref in _origins.keyrefs())))
    return tuple(found) if len(found) <= _MOST else (*found[:_MOST], f"and {len(found) - _MOST} more")


def _label(thread: threading.Thread | None, run: RunNode) -> str | None:
    origin = _origins.get(thread) if thread is not None and thread.is_alive() else None
    return origin.label if origin is not None and run.id in origin.within else None
