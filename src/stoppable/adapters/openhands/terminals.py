"""Commands in the terminals of OpenHands: a stop ends them, but keeps the shell with its directory and variables.

A job that left the session of its shell (``setsid job &``) is found by a variable that the shell was started with.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
import os
import signal
import termios
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stoppable
from stoppable.adapters.openhands import names

_PROC = Path("/proc")

TERMINAL = "STOPPABLE_TERMINAL"
"""The environment variable that identifies a terminal, or several that share the server of tmux."""
_PANE = "TMUX_PANE"


class ProcessInfo(NamedTuple):
    """A process, with its start time, which protects against a reused pid."""

    pid: int
    started: int
    group: int
    session: int
    front: int
    """The group that the terminal belongs to now, or -1."""


def process(pid: int | str) -> ProcessInfo | None:
    """Return a process that is alive, or None."""
    with contextlib.suppress(OSError):
        state, _, group, session, _, front, *more = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        if state not in (b"Z", b"X"):
            return ProcessInfo(int(pid), int(more[13]), int(group), int(session), int(front))
    return None


def shell_of(terminal: Any) -> int | None:
    """Return the pid of the shell of any kind of OpenHands terminal, or None if it is not known."""
    own = getattr(terminal, "process", None)
    pane = getattr(terminal, "pane", None)
    pid = own.pid if own is not None else getattr(pane, "pane_pid", None)
    return None if pid is None or process(pid) is None else int(pid)


def in_front(shell: int) -> int | None:
    """Return the group of the command that a shell waits for, or None if it waits for the next command."""
    leader = process(shell)
    return None if leader is None or leader.front in {-1, leader.group} else leader.front


def is_at_prompt(shell: int) -> bool:
    """Return whether a shell waits for a line: then its terminal passes keys on one by one, for readline.

    A Ctrl-C would throw away a line that is typed already, which may be the next command of the agent.
    """
    try:
        terminal = os.open(_PROC / str(shell) / "fd/0", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return False  # it is gone, or has no terminal
    try:
        return not termios.tcgetattr(terminal)[3] & termios.ICANON
    except termios.error:
        return False
    finally:
        os.close(terminal)


def jobs(shell: int) -> set[ProcessInfo]:
    """Return the processes that a shell has started, without the shell."""
    leader = process(shell)
    if leader is None:
        return set()
    numbers = [entry.name for entry in _PROC.iterdir() if entry.name.isdigit()]
    processes = [one for number in numbers if (one := process(number)) is not None and one.pid != shell]
    terminal = _terminal_of(shell)
    return {
        one._replace(front=0)
        for one in processes
        if one.session == shell
        or (terminal is not None and one.started >= leader.started and _terminal_of(one.pid) == terminal)
    }


def _terminal_of(pid: int) -> tuple[bytes, bytes] | None:
    """Return what identifies the terminal that a process was started in, or None."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None  # it is gone, or belongs to another user
    variables = {name: value for name, _, value in (entry.partition(b"=") for entry in entries)}
    terminal = variables.get(TERMINAL.encode())
    # Without the first one, the second may be that of the terminal in which the whole program was started.
    return None if terminal is None else (terminal, variables.get(_PANE.encode(), b""))


_logger = logging.getLogger("stoppable.adapters.openhands")

_STEP_SECONDS = 0.05
_BUILTIN_SECONDS = 0.5  # a command in front is seen before
_FORCED = float("inf")


class Shells:
    """The shells that one run has used, and the processes that were in them before."""

    def __init__(self) -> None:
        self._before: dict[int, set[ProcessInfo]] = {}
        self._busy: dict[int, int] = {}  # by shell, the tool calls in flight that use it
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def using(self, shell: int) -> Iterator[None]:
        """Note that a tool call of the run uses a shell in the block."""
        before = self._before.get(shell)
        if before is None:
            before = jobs(shell)
        with self._lock:
            self._before.setdefault(shell, before)
            self._busy[shell] = self._busy.get(shell, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._busy[shell] -= 1

    def end_jobs(self) -> None:
        """End the background jobs that the current, stopped run has started in its shells.

        A foreground command is left to the tool call that waits for it.
        """
        for shell, before in list(self._before.items()):
            spared = in_front(shell) if self._busy.get(shell) else None
            groups = {job.group for job in jobs(shell) - before} - {spared, shell}
            for group in groups:
                _end(group)


class RunningToolCall:
    """A tool call that is executed, with the shells that it waits for."""

    def __init__(self, run: stoppable.Run, shells: Shells, executor: Any) -> None:
        self.run: stoppable.Run = run
        self.executor: Any = executor
        """What executes its tool, which may serve several calls; None for a tool that the agent does not have."""
        self.is_executing: bool = False
        self._shells = shells
        self._waits_for: set[int] = set()
        self._functions: list[Callable[[], object]] = []
        self._is_interrupted = False
        self._over = threading.Event()
        self._ending = threading.Lock()  # held while its command is being ended
        self._context = contextvars.copy_context()  # where the current run is the tool call

    @contextlib.contextmanager
    def executing(self) -> Iterator[None]:
        """Let an interrupt end the command, while the block executes the tool."""
        token = current_call.set(self)
        self.is_executing = True
        try:
            with stoppable.on_interrupt(self._end):
                yield
        finally:
            self.is_executing = False
            self._over.set()
            with self._ending:  # a call that OpenHands returns from at a time-out of its own leaves a command
                pass
            current_call.reset(token)

    @contextlib.contextmanager
    def using(self, shell: int) -> Iterator[None]:
        """Let the block wait for a command of a shell."""
        with self._shells.using(shell):
            self._waits_for.add(shell)
            try:
                stoppable.check()  # seen by a stop from here on, or raised here
                yield
            finally:
                self._waits_for.discard(shell)

    def when_interrupted(self, function: Callable[[], object]) -> None:
        """Call a function when an interrupt ends the call, at once if it has."""
        self._functions.append(function)
        if self._is_interrupted:
            function()

    def _end(self) -> None:
        """End the command: Ctrl-C first, then by force if it is still alive after a while."""
        self._is_interrupted = True  # first, so that no function is missed
        functions = self._functions.copy()
        if self.executor is not None and not _is_terminal(self.executor):
            functions.append(self.executor.interrupt)
        for function in functions:
            try:
                function()
            except Exception:
                _logger.exception("interrupting a tool failed")
        with self._ending:
            self._end_commands()

    def _end_commands(self) -> None:
        interrupted_at: dict[tuple[int, int], float] = {}  # by shell and group, when it was sent a Ctrl-C
        quiet: dict[int, float] = {}  # by shell, since when nothing is in front of it
        while self.run.outcome is None and not self._over.is_set():
            for shell in self._waits_for.copy():  # the command may not have begun yet, and another one may follow it
                group = in_front(shell)
                if group is not None:
                    quiet.pop(shell, None)
                    self._end_group(shell, group, interrupted_at)
                elif is_at_prompt(shell):  # its command has ended, or will be typed
                    quiet.pop(shell, None)
                elif time.monotonic() - quiet.setdefault(shell, time.monotonic()) >= _BUILTIN_SECONDS:
                    del quiet[shell]
                    _interrupt_shell(shell)  # it executes a builtin, such as read, or a loop of them
            self._over.wait(_STEP_SECONDS)
        for (shell, group), at in interrupted_at.items():  # the call may have returned without its command
            if at != _FORCED and in_front(shell) == group:
                self._context.copy().run(_end, group)

    def _end_group(self, shell: int, group: int, interrupted_at: dict[tuple[int, int], float]) -> None:
        now, which = time.monotonic(), (shell, group)
        if which not in interrupted_at:
            interrupted_at[which] = now
            _interrupt_shell(shell)
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGINT)
        elif now - interrupted_at[which] >= self.run.policy.interrupt:
            interrupted_at[which] = _FORCED
            self._context.copy().run(_end, group)


def _interrupt_shell(shell: int) -> None:
    """Make a shell execute nothing more of its command line once the command that it waits for has ended.

    The Ctrl-C of a terminal goes to the command alone, and bash then goes on with its loop or list unless the command
    dies from it.
    """
    with contextlib.suppress(OSError):
        os.kill(shell, signal.SIGINT)


def _is_terminal(executor: Any) -> bool:
    # Its interrupt() would send Ctrl-C to the terminals of all calls.
    return names.TERMINAL_EXECUTOR is not None and isinstance(executor, names.TERMINAL_EXECUTOR)


def _end(group: int) -> None:
    """Make a process group a part of the current, stopped run: it gets TERM, then KILL, and the run waits for it."""
    with contextlib.suppress(stoppable.AgentStopped):
        stoppable.adopt_process(pgid=group, name=f"command {group}")


def mark_shells() -> None:
    """Start every shell with a variable that identifies its terminal: it finds jobs that leave the shell's session."""
    for name in ("subprocess_terminal", "tmux_terminal", "tmux_pane_pool"):
        with contextlib.suppress(ImportError, AttributeError):  # without it, jobs are found by their session
            module: Any = importlib.import_module(f"openhands.tools.terminal.terminal.{name}")
            module.build_terminal_env = _with_mark(module.build_terminal_env)


def _with_mark(plain: Callable[..., dict[str, str]]) -> Callable[..., dict[str, str]]:
    @functools.wraps(plain)
    def build(*args: Any, **kwargs: Any) -> dict[str, str]:
        return {**plain(*args, **kwargs), TERMINAL: uuid.uuid4().hex}

    return build


current_call: contextvars.ContextVar[RunningToolCall | None] = contextvars.ContextVar(
    "stoppable-openhands-call", default=None
)


def execute(plain: Any) -> Any:
    """Return ``TerminalSession.execute`` that notes which tool call waits for which shell."""

    @functools.wraps(plain)
    def noted(self: Any, action: Any) -> Any:
        call = current_call.get()
        shell = None if call is None else shell_of(self.terminal)
        if call is None or shell is None:
            return plain(self, action)
        with call.using(shell):
            return plain(self, action)

    return noted
