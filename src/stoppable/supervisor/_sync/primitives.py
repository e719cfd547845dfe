"""What the supervisor for blocking code needs and async code does differently; see ``_async``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from stoppable._core.node import RunNode
from stoppable._engine.blocking import BlockingHandle
from stoppable._engine.bodies import Channel
from stoppable._engine.handle import RunHandle
from stoppable.stores.base import StoreFuture
from stoppable.supervisor.core import SupervisorCore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IN_LOOP = False
READER_LEFT = (GeneratorExit, KeyboardInterrupt)
Handle = BlockingHandle


def parts_of(handle: RunHandle[Any]) -> tuple[RunNode, Channel[Any] | None]:
    """Return what a handle is made of."""
    return handle._run, handle._channel


def answer(reply: StoreFuture[T]) -> T:
    """Wait for the answer of the store."""
    return reply.result()


def in_background(call: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a blocking function."""
    call(*args)


def open_core(core: SupervisorCore) -> None:
    """Open the store and take the lease."""
    core.open()


class News:
    """Collects the ids of runs that may have changed, from any thread, for one thread."""

    def __init__(self) -> None:
        self._changed_runs: set[str] = set()
        self._event = threading.Event()

    def tell(self, run_id: str) -> None:
        """Report that a run may have changed; from any thread."""
        self._changed_runs.add(run_id)
        self._event.set()

    def wait(self, seconds: float) -> set[str]:
        """Return the ids reported since the last call; waits up to ``seconds`` for the first one.

        None of them if one was reported in the very moment when they were taken: then all may have changed.
        """
        self._event.wait(seconds)
        self._event.clear()
        changed_runs, self._changed_runs = self._changed_runs, set()
        return changed_runs
