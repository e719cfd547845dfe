"""An event loop for agents on a separate thread, so that an agent that blocks does not delay stops."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias, TypeVar

_logger = logging.getLogger("stoppable.server")

T = TypeVar("T")
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

CLOSE_SECONDS = 2.0


class AgentLoop:
    """A separate event loop for async agents; ``lifespan`` is entered on it before the first agent.

    Create pools and clients that the agents share in ``lifespan``: they then belong to this loop, not to the server's.
    """

    def __init__(self, lifespan: Lifespan | None = None) -> None:
        self._lifespan = lifespan or contextlib.nullcontext
        self._opened: Future[asyncio.AbstractEventLoop] = Future()
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, once it is open."""
        return self._opened.result(0)

    def call(self, function: Callable[[T], object], argument: T) -> None:
        """Schedule a function call on the loop, without waiting for it.

        The function sees the context variables of the lifespan, not those of the calling request, which would otherwise
        stay alive as long as the run.
        """
        self.loop.call_soon_threadsafe(function, argument, context=self._context.copy())

    def open(self) -> None:
        """Start the loop and enter the lifespan; blocks until that is done, and raises what the lifespan raises."""
        self._opened = Future()
        self._thread = threading.Thread(target=self._work, name="stoppable-agents", daemon=True)
        self._thread.start()
        self._opened.result()

    def close(self) -> None:
        """Leave the lifespan and end the loop; gives up on a blocked loop after some seconds."""
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # it has already ended
            self.loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(CLOSE_SECONDS)
        self._thread = None

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            try:
                _run(runner.get_loop(), self._live())
            except BaseException as error:
                if not self._opened.done():
                    self._opened.set_exception(error)
                    return
                raise

    async def _live(self) -> None:
        self._closing = asyncio.Event()
        async with self._lifespan():
            self._context = contextvars.copy_context()
            self._opened.set_result(asyncio.get_running_loop())
            await self._closing.wait()  # as long as the server; close() sets it, and waits CLOSE_SECONDS for the rest


def _run(loop: asyncio.AbstractEventLoop, living: Coroutine[Any, Any, None]) -> None:
    """Run a loop until a future is done; an agent that calls ``sys.exit()`` does not end the loop of the others."""
    task = loop.create_task(living)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as left:
            if task.done():
                raise
            _logger.warning("an agent raised %s: its run has ended, the others go on", type(left).__name__)
