"""The command of a process, validated before it starts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias

from stoppable.errors import InvalidArgument

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
