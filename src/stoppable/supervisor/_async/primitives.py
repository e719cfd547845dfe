"""What the supervisor for async code needs and blocking code does differently; ``_sync`` has its own version."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from asyncio import CancelledError, Task
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar, TypeVarTuple

from stoppable._core.boundary import check
from stoppable._core.context import current_run, detached
from stoppable._core.node import RunNode
from stoppable._engine.bodies import Channel
from stoppable._engine.handle import RunHandle
from stoppable._engine.threads import to_thread
from stoppable.stores.base import StoreFuture
from stoppable.supervisor.core import SupervisorCore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IN_LOOP = True
"""Whether an async agent is started in the loop of the caller."""
READER_LEFT = (GeneratorExit, CancelledError)
"""The exceptions with which the reader of a stream leaves it."""
Handle = RunHandle


def parts_of(handle: RunHandle[Any]) -> tuple[RunNode, Task[Any] | Thread, Channel[Any] | None]:
    """Return what a handle is made of."""
    return handle._run, handle._carrier, handle._channel


async def answer(reply: StoreFuture[T]) -> T:
    """Wait for the answer of the store."""
    return await reply


async def in_background(call: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a blocking function on a thread and wait for it, even if the surrounding run is stopped."""
    with detached():
        await to_thread(call, *args)


async def open_core(core: SupervisorCore) -> None:
    """Open the store and take the lease."""
    if current_run() is not None:
        check()
    try:
        await in_background(core.open)
    except CancelledError:
        # The thread that opens it cannot be ended; once it has opened the store, the caller is gone and cannot close
        # it.
        threading.Thread(target=core.close, name="stoppable-close", daemon=True).start()
        raise


class News:
    """Collects the ids of runs that may have changed, from any thread, for one task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed_runs: set[str] = set()
        self._event = asyncio.Event()

    def tell(self, run_id: str) -> None:
        """Report that a run may have changed; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._tell, run_id)

    def _tell(self, run_id: str) -> None:
        self._changed_runs.add(run_id)
        self._event.set()

    async def wait(self, seconds: float) -> set[str]:
        """Return the ids reported since the last call; waits up to ``seconds`` for the first one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        changed_runs, self._changed_runs = self._changed_runs, set()
        return changed_runs
