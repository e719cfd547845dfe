"""``instrument()`` and ``uninstrument()``."""

from __future__ import annotations

import concurrent.futures.thread
import threading
from collections.abc import Iterable
from types import ModuleType

from stoppable._engine.plain import executors, patches, threads, whose


def instrument(*, include: Iterable[str] = ()) -> None:
    """Make the threads, executor calls and processes that a run's code starts take part in the run.

    They are listed in the receipt, a stop ends them where that is possible, and the run is not ``stopped`` before they
    have ended; after a stop none is started, except by clean-up. Outside runs and in ``detached()`` everything is as it
    was. A thread takes part if it executes the user's code; ``include`` names installed modules that count as that.
    """
    whose.include(include)
    patches.switch(on=True)
    patches.put(threading.Thread, "start", threads.start_of)
    patches.put(concurrent.futures.thread.ThreadPoolExecutor, "submit", executors.submit_of)
    patches.when_imported("anyio._backends._asyncio", _anyio)


def uninstrument() -> None:
    """Undo ``instrument()``; what takes part already goes on to do so."""
    patches.switch(on=False)
    patches.wait_no_longer()
    patches.take_away()


def _anyio(module: ModuleType) -> None:
    patches.put(module.AsyncIOBackend, "run_sync_in_worker_thread", executors.run_sync_of)
