"""The ways in which plain code starts processes: subprocess, asyncio, uvloop, multiprocessing, fork."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextvars import Token
from typing import Any, cast

from stoppable._core import context
from stoppable._core.context import FORKED, Outside, RunContext
from stoppable._engine.plain import library, scopes
from stoppable._engine.plain.patches import is_on
from stoppable._engine.plain.processes import ProcessStart

_get, _set = context.current.get, context.current.set
_ENV = 9  # the index of `env` in Popen's positional arguments after the first


def _here() -> RunContext | None:
    return None if type(_get()) is Outside or not is_on() else scopes.current()


class _OnlyInRuns:
    """A method that is the original outside runs, without a frame of ours: a warning then names the caller's line."""

    def __init__(self, original: Callable[..., None], inside: Callable[..., None]) -> None:
        functools.update_wrapper(cast("Any", self), original)
        self._original, self._inside = original, inside

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        method: Any = self._original if _here() is None else self._inside
        return method.__get__(instance, owner)


def popen_of(original: Callable[..., None]) -> _OnlyInRuns:
    """Return a ``Popen.__init__`` whose processes take part in the run; asyncio uses it too."""

    @functools.wraps(original)
    def init(self: Any, args: Any, *rest: Any, **options: Any) -> None:
        scope = _here()
        if scope is None:
            original(self, args, *rest, **options)
            return
        start = ProcessStart(scope, _program(args))
        if len(rest) > _ENV:
            rest = (*rest[:_ENV], start.environment(rest[_ENV]), *rest[_ENV + 1 :])
        else:
            options["env"] = start.environment(options.get("env"))
        try:
            original(self, args, *rest, **options)
        except BaseException as error:
            start.failed(error)
            raise
        start.started(self.pid)

    return _OnlyInRuns(original, init)


def _program(args: Any) -> str:
    """Return the name under which a command is listed: that of its program."""
    if not isinstance(args, str | bytes | os.PathLike):
        args = next(iter(args), "")
    try:
        words = os.fsdecode(args).split(None, 1)
    except TypeError:
        return "?"  # Popen will refuse it
    return os.path.basename(words[0]) if words else "?"  # noqa: PTH119 - it need not be a path


def uvloop_spawn_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``subprocess_exec`` or ``subprocess_shell`` for uvloop whose processes take part in the run."""

    @functools.wraps(original)
    async def spawn(self: Any, protocol_factory: Any, program: Any, *args: Any, **options: Any) -> Any:
        scope = _here()
        if scope is None:
            return await original(self, protocol_factory, program, *args, **options)
        start = ProcessStart(scope, _program([program]))
        options["env"] = start.environment(options.get("env"))
        try:
            transport, protocol = await original(self, protocol_factory, program, *args, **options)
        except BaseException as error:
            start.failed(error)  # if it was cancelled half-way, the process is found by its cookie
            raise
        start.started(transport.get_pid())
        return transport, protocol

    return spawn


def fork_of(original: Callable[[], int]) -> Callable[[], int]:
    """Return an ``os.fork`` whose processes take part in the run."""

    @functools.wraps(original)
    def fork() -> int:
        pid: int = _forked(original, lambda pid: pid)
        return pid

    return fork


def forkpty_of(original: Callable[[], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
    """Return an ``os.forkpty`` whose processes take part in the run; ``pty`` and libraries based on it use it."""

    @functools.wraps(original)
    def forkpty() -> tuple[int, int]:
        pair: tuple[int, int] = _forked(original, lambda pair: pair[0])
        return pair

    return forkpty


def _forked(original: Callable[[], Any], pid_of: Callable[[Any], int]) -> Any:
    scope = _here()
    if scope is None:
        return original()
    start = ProcessStart(scope, "fork")
    try:
        with start.marking_forks():
            result = original()
    except BaseException as error:
        start.failed(error)
        raise
    if pid_of(result) == 0:
        _set(FORKED)
    else:
        start.started(pid_of(result))
    return result


def process_start_of(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a ``multiprocessing.Process.start`` whose processes take part in the run, with any start method."""

    @functools.wraps(original)
    def start(self: Any) -> None:
        scope: RunContext | None = _here()
        if scope is None and is_on():
            scope = library.pool_of_run()
        if scope is None:
            original(self)
            return
        process = ProcessStart(scope, self.name)
        # A forked process has no run, and multiprocessing's own servers, which this may start, belong to none.
        reset: Token[RunContext] = _set(FORKED)
        try:
            with process.marking_forks():
                original(self)
        except BaseException as error:
            process.failed(error)
            raise
        finally:
            context.current.reset(reset)
        process.started(self.pid)

    return start
