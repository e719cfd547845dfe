"""What the commands share that offer agents over stdin and stdout, for the configuration of a client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias

from stoppable import _secrets
from stoppable._core.values import PRESSES
from stoppable._engine import control
from stoppable._engine.instrumentation.install import instrument
from stoppable.cli.exits import Exit, complain, of_error
from stoppable.errors import StoppableError
from stoppable.supervisor import Supervisor

if TYPE_CHECKING:
    from stoppable.server.backend import Backend

_logger = logging.getLogger("stoppable.server")

Agents: TypeAlias = Mapping[str, Callable[..., Any]]


def serve(
    serve_streams: Callable[..., Awaitable[None]],
    find: Callable[[], Agents],
    *,
    store: str | None,
    keep_input: bool,
) -> NoReturn:
    """Serve the agents that a function finds to the client at the other ends of stdin and stdout, and exit.

    ``serve_streams`` speaks the protocol of the client, until that leaves.
    """
    from stoppable.server import logs  # noqa: PLC0415 - it needs an extra

    with _pipes() as (reading, writing), _secrets.hide(store), logs.log_to_stderr(as_json=False):
        instrument()  # before the agents are imported, which may say otherwise
        agents = find()
        supervisor = Supervisor(store, keep_input=keep_input, unpickle=False)
        asyncio.run(_serve_and_leave(serve_streams, supervisor, agents, reading, writing))
    raise AssertionError("the process has ended")


async def _serve_and_leave(
    serve_streams: Callable[..., Awaitable[None]], supervisor: Supervisor, agents: Agents, *pipes: BinaryIO
) -> NoReturn:
    try:
        code = await _serve(serve_streams, supervisor, agents, *pipes)
    except StoppableError as error:  # of the store
        complain(str(error))
        code = of_error(error)
    control.wait_for_hooks()
    _leave(code)


async def _serve(
    serve_streams: Callable[..., Awaitable[None]], supervisor: Supervisor, agents: Agents, *pipes: BinaryIO
) -> Exit:
    """Serve until the client closes its pipe or a signal comes, and stop what still runs."""
    from stoppable.server.app import local_backend  # noqa: PLC0415 - it needs an extra

    async with local_backend(agents, supervisor) as backend:
        buttons = _Buttons(backend)
        with buttons.pressed_by_signals():
            connection = asyncio.ensure_future(serve_streams(backend, *pipes))
            signalled = asyncio.create_task(buttons.signalled.wait())
            await asyncio.wait({connection, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if connection.done() and (error := connection.exception()) is not None:
                _logger.warning("the connection to the client is broken: %r", error)
            if not buttons.presses:
                buttons.press()
            await backend.drain()
    return Exit.TERMINATED if buttons.signalled.is_set() else Exit.DONE


class _Buttons:
    """The end of the input and signals: each of them stops the runs, the next one harder."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.presses = 0
        self.signalled = asyncio.Event()

    @contextlib.contextmanager
    def pressed_by_signals(self) -> Any:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take_signal)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _take_signal(self) -> None:
        self.press()
        self.signalled.set()

    def press(self) -> None:
        """Stop all runs, in the next mode."""
        if self.presses == len(PRESSES):
            _leave(Exit.TERMINATED)
        self._backend.hurry(PRESSES[self.presses])
        self.presses += 1


@contextlib.contextmanager
def _pipes() -> Any:
    """Yield stdin and stdout for the protocol alone: what agents print, or read, is neither of them."""
    reading, writing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    sys.stdout.flush()
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    yield reading, writing


def _leave(code: Exit) -> NoReturn:
    """End this process now: a thread that waits for input, or one that an agent left behind, would hold it up."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
