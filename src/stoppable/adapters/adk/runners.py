"""Runners whose every run can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from google.adk.runners import Runner
from starlette.websockets import WebSocketDisconnect

import stoppable
from stoppable.adapters.adk import names
from stoppable.adapters.adk.boundaries import activate, in_thread
from stoppable.adapters.adk.sealing import MESSAGE, abort_event, remember, repair, seal
from stoppable.adapters.adk.services import protect
from stoppable.adapters.adk.sessions import address, connection
from stoppable.adapters.adk.turns import AdkSpan, AdkTurn, current
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.adapters.adk")

R = TypeVar("R", bound=Runner)

OnDisconnect = Literal["keep", "stop"]

_SEAL_SECONDS = 5.0
_LEAVE_SECONDS = 30.0  # the ladder ends before

_background: set[asyncio.Task[None]] = set()  # asyncio itself keeps only weak references


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """How the runs of a runner are started."""

    supervisor: Supervisor | None
    on_disconnect: OnDisconnect
    tool_threads: bool
    app_name: str


def wrap(
    runner: R,
    supervisor: Supervisor | None = None,
    *,
    on_disconnect: OnDisconnect = "stop",
    tool_threads: bool = True,
    app_name: str | None = None,
) -> R:
    """Make the runs of a runner stoppable, and return the runner.

    With a supervisor the runs are kept in its store, and stopped by the key of their session or by their id; without
    one they belong to the current run, if there is one. ``on_disconnect`` decides about a run whose reader leaves:
    ``stop`` ends it, as plain ADK does; ``keep`` lets it go on. Sync tools run on threads that belong to the run;
    ``tool_threads=False`` leaves them on the event loop, which they block. Threads and processes that tools start
    belong to their run, as with ``stoppable.instrument()``.
    """
    if on_disconnect not in {"keep", "stop"}:
        raise stoppable.InvalidArgument(f"unknown on_disconnect {on_disconnect!r}: use keep or stop")
    activate()
    stoppable.instrument()
    if not hasattr(runner, "_stoppable"):
        wrapping = Wrapping(
            supervisor=supervisor,
            on_disconnect=on_disconnect,
            tool_threads=tool_threads,
            app_name=app_name or runner.app_name,
        )
        protect(runner.session_service)
        runner.run_async = _stoppable(runner, runner.run_async, wrapping)
        runner.run_live = _stoppable(runner, runner.run_live, wrapping)
        runner._stoppable = wrapping
    return runner


def _stoppable(runner: Runner, real: Callable[..., Any], wrapping: Wrapping) -> Callable[..., Any]:
    @functools.wraps(real)  # the server looks for abort_signal in the signature
    async def run(**kwargs: Any) -> AsyncIterator[Any]:
        invocation = _Invocation(runner, real, wrapping, kwargs)
        await invocation.start()
        async with contextlib.aclosing(invocation.read()) as events:
            async for event in events:
                yield event

    return run


class _Invocation:
    """One call of a runner: its run, and the reader of its events, which may leave."""

    def __init__(self, runner: Runner, real: Callable[..., Any], wrapping: Wrapping, kwargs: dict[str, Any]) -> None:
        self._runner, self._real, self._wrapping, self._kwargs = runner, real, wrapping, kwargs
        session = kwargs.get("session")
        self._user_id: str = session.user_id if session else kwargs["user_id"]
        self._session_id: str = session.id if session else kwargs["session_id"]
        self._is_live = "live_request_queue" in kwargs
        self._ends_with_reader = self._is_live or wrapping.on_disconnect == "stop"
        self._connection = connection.get()
        self._turn = AdkTurn()
        self._run: stoppable.Run | None = None
        self._has_left = False
        self._is_closed = asyncio.Event()

    async def start(self) -> None:
        """Start the run."""
        try:
            handle = await self._handle()
        except BaseException:  # it may have been started, and nobody reads it
            self._leave("graceful")
            raise
        if self._connection is not None:
            self._connection.note_begun()
            self._connection.on_left = functools.partial(self._leave, "graceful")
        watcher = asyncio.create_task(self._watch(handle))
        _background.add(watcher)
        watcher.add_done_callback(_background.discard)

    async def _handle(self) -> stoppable.RunHandle[None]:
        supervisor, app_name = self._wrapping.supervisor, self._wrapping.app_name
        if supervisor is None:
            return await stoppable.spawn(self._body, name=app_name)
        return await supervisor.start(
            self._body,
            name=app_name,
            run_id=None if self._connection is None else self._connection.take(),
            on_disconnect=self._wrapping.on_disconnect,
            **address(app_name, self._user_id, self._session_id),
        )

    async def _body(self) -> None:
        """Iterate ADK's own generator in the run's task; this is the body of the run."""
        self._run = run = stoppable.current_run()
        assert run is not None, "it is the body of one"
        if self._wrapping.tool_threads:
            names.SYNC_RUNNER.set(in_thread)
        turn = self._turn
        turn.events.release_with_stop()
        if self._has_left:
            self._leave("graceful")
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.enter_context(current.use(AdkSpan(turn, None, None)))
                arguments = self._hook_arguments(stack)
                await self._repair()
                events = await stack.enter_async_context(contextlib.aclosing(self._real(**arguments)))
                async for event in events:
                    self._tell(event)
                    await turn.events.until_wanted()
        except BaseException as error:
            is_own_error = isinstance(error, Exception) and not run.token.stopped
            child = _end_of_child(error)
            if is_own_error:
                turn.error = child or error
            if not is_own_error or child is not None:
                await self._seal()
            raise
        else:
            if run.delivered_at is not None:
                await self._seal()
        finally:
            self._close()

    def _hook_arguments(self, stack: contextlib.AsyncExitStack) -> dict[str, Any]:
        """Return the arguments for ADK; an ``abort_signal`` stops the run, and a stop closes a live request queue."""
        loop, kwargs = asyncio.get_running_loop(), dict(self._kwargs)
        signal = kwargs.pop("abort_signal", None)
        if self._is_live:
            queue = kwargs["live_request_queue"]
            stoppable.on_stop(lambda: loop.call_soon_threadsafe(queue.close))
        elif signal is not None and self._connection is None:  # the server's own is set when its client leaves
            stack.callback(asyncio.create_task(self._abort_with(signal)).cancel)
        return kwargs

    async def _abort_with(self, signal: asyncio.Event) -> None:
        with stoppable.detached():
            await signal.wait()
        if self._run is not None:
            self._run.stop("immediate", stoppable.Reason.of("abort_signal", kind=stoppable.ReasonKind.EXTERNAL))

    async def _repair(self) -> None:
        await repair(
            self._runner,
            self._user_id,
            self._session_id,
            self._wrapping.supervisor,
            app_name=self._wrapping.app_name,
            arguments=self._kwargs,
        )

    async def _seal(self) -> None:
        """Write the end of the turn into the session; if that fails, the next turn does it, and the reader is told."""
        turn = self._turn
        try:
            with stoppable.shielded(_SEAL_SECONDS):
                await seal(self._runner, self._user_id, self._session_id, turn, self._tell)
        except BaseException:
            _logger.warning("the end of a stopped turn is not in its session: the next turn writes it", exc_info=True)
            remember(self._runner, self._user_id, self._session_id, turn)
            self._tell(abort_event(turn, self._runner.agent.name))
            raise

    def _tell(self, event: Any) -> None:
        self._turn.tell(event, names.wire_event(event))

    def _close(self) -> None:
        self._turn.close()
        self._is_closed.set()

    async def _watch(self, handle: stoppable.RunHandle[None]) -> None:
        """Seal the turn of a run that ended without its body: one that was stopped before it began, or lost."""
        await handle.outcome()
        if not self._is_closed.is_set():
            try:
                with contextlib.suppress(Exception):  # it is in the log
                    await self._seal()
            finally:
                self._close()

    async def read(self) -> AsyncGenerator[Any, None]:
        """Yield the events until the run is over."""
        try:
            async for event in self._turn.events:
                yield event
        except GeneratorExit:
            await self._leave_and_wait()
            raise
        except BaseException:  # nothing may be awaited: the handler's task is being cancelled
            self._leave("graceful")
            raise
        if self._turn.error is not None:
            raise self._turn.error  # unchanged: the server handles SessionNotFoundError separately
        if self._is_live and self._run is not None and self._run.token.stopped:
            await self._close_socket()

    def _leave(self, mode: str) -> None:
        """Stop or keep the run whose reader left, as ``on_disconnect`` says; one that is stopping is not cut off.

        A live run ends at once: nobody hears it, and nobody can join it again.
        """
        self._has_left = True
        run = self._run  # one that has not begun looks when it does
        if self._ends_with_reader and run is not None and not run.token.stopped:
            run.stop(
                "immediate" if self._is_live else mode,
                stoppable.Reason.of("the client left", kind=stoppable.ReasonKind.DISCONNECT),
            )
        self._turn.events.release()

    async def _leave_and_wait(self) -> None:
        """Leave because the generator is closed: as in plain ADK, the agent has ended when ``aclose()`` returns.

        The client of a server leaves more gently, and its handler does not wait.
        """
        if self._connection is not None:
            self._leave("graceful")
            return
        self._leave("immediate")
        if self._ends_with_reader:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._is_closed.wait()

    async def _close_socket(self) -> None:
        client_connection = self._connection
        if client_connection is not None and client_connection.is_socket:
            await client_connection.send({"type": "websocket.close", "code": 1000, "reason": MESSAGE})
            raise WebSocketDisconnect(1000)  # the server takes this for an orderly end; otherwise the socket stays open


def _end_of_child(error: BaseException) -> Exception | None:
    """Return the stop of a sub-agent that made a turn fail, without the groups in which ADK's task groups raise it."""
    if isinstance(error, BaseExceptionGroup):
        return next((end for inner in error.exceptions if (end := _end_of_child(inner)) is not None), None)
    return error if isinstance(error, stoppable.RunStopped | stoppable.RunLost) else None
