"""The errors of processes.

StoppableError
├── ProcessNotStarted             (OSError) the system refused to start it; nothing is running
│   └── CommandNotFound           (FileNotFoundError) there is no such program
└── ProcessFailed                 (subprocess.CalledProcessError) check=True, and the exit code is not 0
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from stoppable.errors import InvalidArgument, StoppableError

if TYPE_CHECKING:
    from stoppable._engine.processes.calls import ProcessResult

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
        said = self.result.stderr or self.result.stdout
        tail = (said.decode(errors="replace") if isinstance(said, bytes) else said).strip()[-_TAIL:]
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
