"""The boundary of a request: entered before it is sent, left when its body was read or closed."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any

from stoppable._core import clock, context, participants
from stoppable._core.boundary import innermost
from stoppable._core.context import RunContext
from stoppable._core.gate import Role
from stoppable._core.hooks import Callback, Hook, Moment
from stoppable._core.node import RunNode
from stoppable._engine import control
from stoppable._engine.outgoing.answers import Answer, note
from stoppable._engine.outgoing.labels import Label
from stoppable._engine.plain import patches, scopes
from stoppable._engine.streaming.chunks import GuardedEntry
from stoppable.errors import AgentStopped

_get = context.current.get
_AGAIN_SECONDS = 0.05
_COVER_REQUESTS = ("llm", "remote")
"""The kinds of boundaries whose requests are a part of their own effect."""

_spared: frozenset[str] = frozenset()


def spare(hosts: Iterable[str]) -> None:
    """Make no boundaries of requests to these hosts."""
    global _spared
    _spared = frozenset(hosts)


class Call(GuardedEntry):
    """The boundary of a request."""

    __slots__ = ("answer", "scope")

    answer: Answer | None
    """What a model answers, if the request is a model call."""
    scope: RunContext

    def cut_off(self) -> None:
        """Raise AgentStopped in place of the error with which INTERRUPT ended the request."""
        try:
            self.scope.raise_stopped()
        except AgentStopped as stopped:
            stopped.by_force = True
            raise


def begin(host_and_label: Callable[..., tuple[str, Label]], *args: Any) -> Call | None:
    """Enter the boundary of a request; raises AgentStopped if the run was stopped.

    None outside runs, for hosts that are spared, and inside another boundary that the request is a part of: that of a
    guarded client or an adapter, or of a client that is built on this one.
    """
    if _get().run_here() is None or not patches.is_on():
        return None
    scope = scopes.current()
    run = None if scope is None else scope.run_here()
    if scope is None or run is None or _is_covered(run):
        return None
    try:
        host, label = host_and_label(*args)
    except Exception:
        host, label = "", Label("http", "request")  # an argument that the client itself will complain about
    if host in _spared:
        return None
    call = Call(*label)
    call.scope = scope
    call.answer = None
    reset = context.current.set(scope)  # clean-up may send requests after the stop
    try:
        call.__enter__()
    finally:
        context.current.reset(reset)
    if label.kind == "llm":
        call.answer = note(run)
    return call


def _is_covered(run: RunNode) -> bool:
    if not any(member.role is Role.BOUNDARY for member in list(run.members or ())):
        return False  # the usual case
    boundary = innermost(run)
    if boundary is not None and (boundary.kind in _COVER_REQUESTS or isinstance(boundary, Call)):
        return True
    participant = participants.join(run)
    boundary = None if participant is None else participant.inside
    return boundary is not None and boundary.kind in _COVER_REQUESTS


async def begin_async(host_and_label: Callable[..., tuple[str, Label]], *args: Any) -> Call | None:
    """Enter the boundary of a request that a task sends."""
    try:
        return begin(host_and_label, *args)
    except AgentStopped:
        await participants.hold_back()
        raise


class blocking:  # noqa: N801 - reads as a statement
    """The time in which a thread waits for the answer to a request, which INTERRUPT ends with ``cut``.

    A thread in ``recv()`` cannot be reached in any other way than through its connection. Without ``cut``, the
    connection is looked for among the variables of the functions that the thread executes.
    """

    __slots__ = ("_call", "_cut", "_frame", "_hook", "_is_over", "_thread")

    def __init__(self, call: Call, cut: Callable[[], object] | None = None) -> None:
        self._call = call
        self._cut = self._cut_unknown if cut is None else cut

    def __enter__(self) -> None:
        self._is_over = False
        self._thread = threading.get_ident()
        self._frame: FrameType | None = sys._getframe(1)
        self._hook: Hook | None = None
        call = self._call
        if call._run is not None:
            call.holder = participants.join(call._run)
        if isinstance(call.scope, RunNode):  # not in clean-up, which lasts until KILL
            self._hook = Callback(call.scope, Moment.INTERRUPT, self._interrupt)
            call.scope.add_hook(self._hook)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over = True
        self._frame = None
        if self._hook is not None:
            self._hook.remove()
        call = self._call
        if error is None:
            call.holder = None  # until it waits again, or reads the body
        else:
            call.leave(error)
            if call.is_cut and isinstance(error, Exception):
                call.cut_off()

    def _interrupt(self) -> None:
        """End the wait, again and again until it is over: there may be no connection yet, or one that only begins."""
        run = self._call._run
        if self._is_over or run is None or run.outcome is not None:
            return
        self._call.is_cut = True
        self._cut()
        control.get().call_at(clock.now() + _AGAIN_SECONDS, self._interrupt)

    def _cut_unknown(self) -> bool:
        frame = self._frame
        return frame is not None and shut_down(_socket_of(self._thread, frame))


def shut_down(connection: Any) -> bool:
    """Shut a connection down, which wakes the thread that reads from it; False if there is none."""
    if connection is None:
        return False
    with contextlib.suppress(OSError):  # the other side was faster
        connection.shutdown(socket.SHUT_RDWR)
    return True


def _socket_of(thread: int, outermost: FrameType) -> socket.socket | None:
    """Return the socket that the functions use which a thread executes inside a frame.

    None if the thread has left that frame meanwhile: any socket would be that of other code.
    """
    connection: socket.socket | None = None
    frame = sys._current_frames().get(thread)
    while frame is not None and frame is not outermost:
        if "http2" in frame.f_code.co_filename:
            return None  # other requests share the connection
        if connection is None:
            sockets = map(_as_socket, list(frame.f_locals.values()))
            connection = next((each for each in sockets if each is not None), None)
        frame = frame.f_back
    return None if frame is None else connection


def _as_socket(value: object) -> socket.socket | None:
    """Return a value that is a socket, or the socket that it is a wrapper of."""
    if isinstance(value, socket.socket):
        return value
    try:
        wrapped = getattr(value, "_sock", None)
    except Exception:
        return None  # an object of the client whose attributes cannot be read now
    return wrapped if isinstance(wrapped, socket.socket) else None
