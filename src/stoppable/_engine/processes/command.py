"""The command of a process, validated before it starts, what it inherits, and the errors of processes.

StoppableError
├── ProcessNotStarted             (OSError) the system refused to start it; nothing is running
│   └── CommandNotFound           (FileNotFoundError) there is no such program
└── ProcessFailed                 (subprocess.CalledProcessError) check=True, and the exit code is not 0

A store considers a worker dead once the worker's lock is free. Processes of the worker inherit the lock's descriptor,
so a free lock proves that they are dead too.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

from stoppable.errors import InvalidArgument, StoppableError

if TYPE_CHECKING:
    from stoppable._engine.processes.process import ProcessResult


_TAIL = 500


class ProcessNotStarted(StoppableError, OSError):
    """The system refused to start a process; nothing is running."""


class CommandNotFound(ProcessNotStarted, FileNotFoundError):
    """The program does not exist; nothing was started."""


class ProcessFailed(StoppableError, subprocess.CalledProcessError):
    """A process with ``check=True`` failed; its output is in ``result``."""

    def __init__(self, name: str, result: ProcessResult[Any]) -> None:
        super().__init__(result.returncode, name, result.stdout, result.stderr)
        self.args: tuple[Any, ...] = (name, result)
        self.name = name
        self.result = result

    def __str__(self) -> str:
        code = self.result.returncode
        how = f"was ended by signal {-code}" if code < 0 else f"exited with {code}"
        output = self.result.stderr or self.result.stdout
        tail = (output.decode(errors="replace") if isinstance(output, bytes) else output).strip()[-_TAIL:]
        return f"{self.name!r} {how}: {tail}" if tail else f"{self.name!r} {how}"


def not_started(program: str, cwd: str | None, error: Exception) -> StoppableError:
    """Return the error that says why a process was not started, and what to do."""
    if not isinstance(error, OSError):
        return InvalidArgument(f"cannot start {program!r}: {error}")
    if cwd is not None and error.filename == cwd:
        return ProcessNotStarted(f"cannot start {program!r} in {cwd!r}: {error.strerror}; pass the path of a directory")
    if isinstance(error, FileNotFoundError):
        return CommandNotFound(
            f"command {program!r} was not found: install it, add its directory to PATH, or pass its path"
        )
    return ProcessNotStarted(f"cannot start {program!r}: {error.strerror}")


_WORD = re.compile(r"[\w./+-]+")

Argument: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to execute, and where; ``name`` is the name under which it is listed."""

    args: str | tuple[str, ...]
    shell: bool
    cwd: str | None
    env: Mapping[str, str] | None
    name: str

    @classmethod
    def of(
        cls,
        command: str | Sequence[Argument],
        *,
        shell: bool = False,
        cwd: Argument | None = None,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> Command:
        """Return a validated command, or raise an error that says what to pass."""
        args = _shell_line(command) if shell else _arguments(command)
        if env is not None and not all(isinstance(text, str) for pair in env.items() for text in pair):
            raise InvalidArgument("env has a name or a value that is not text: use a mapping of str to str")
        return cls(
            args=args,
            shell=shell,
            cwd=None if cwd is None else os.fspath(cwd),
            env=env,
            name=name or _name(args),
        )


def _shell_line(command: object) -> str:
    if not isinstance(command, str) or not command.strip():
        raise InvalidArgument(f"{command!r} is not a shell command: with shell=True pass one string")
    return command


def _arguments(command: Any) -> tuple[str, ...]:
    if isinstance(command, str):
        raise InvalidArgument(
            f"{command!r} is one string: pass a list of arguments, or shell=True to let a shell parse it"
        )
    try:
        args = tuple(os.fspath(argument) for argument in command)
    except TypeError:
        raise InvalidArgument(f"{command!r} is not a command: pass a list of strings and paths") from None
    if not args or not args[0] or not all(isinstance(argument, str) for argument in args):
        raise InvalidArgument(f"{command!r} is not a command: pass a list of strings and paths, the program first")
    return args


def _name(args: str | tuple[str, ...]) -> str:
    """Return the base name of the program; for a shell command, that of the first word that sets no variable."""
    if isinstance(args, tuple):
        return PurePath(args[0]).name
    # A variable may hold a secret, and the name is shown in receipts.
    words = (_WORD.match(word) for word in args.split() if "=" not in word)
    return next((PurePath(word.group()).name for word in words if word), "sh") or "sh"


_sources: list[Callable[[], tuple[int, ...]]] = []


def add_inherited_fds(source: Callable[[], tuple[int, ...]]) -> None:
    """Pass the descriptors that a function returns to new processes, until it is removed."""
    _sources.append(source)


def remove_inherited_fds(source: Callable[[], tuple[int, ...]]) -> None:
    """Stop passing these descriptors."""
    if source in _sources:
        _sources.remove(source)


def inherited_fds() -> tuple[int, ...]:
    """Return the descriptors for a new process (``pass_fds``)."""
    return tuple(descriptor for source in list(_sources) for descriptor in source())
