"""The exit codes of commands, and how an error becomes one."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer

from stoppable._core.values import Status
from stoppable.cli.text import safe
from stoppable.errors import (
    AgentNotFound,
    HoldNotFound,
    InvalidArgument,
    RunConflict,
    RunHeld,
    RunNotFound,
    StoppableError,
    StoreError,
)

P = ParamSpec("P")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
T = TypeVar("T")


class Exit(IntEnum):
    """The codes; documented in docs/cli.md and at the end of ``stoppable --help``."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    STOPPED = 6
    LOST = 7
    TIMEOUT = 8
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS = {
    Exit.DONE: "done; the run completed",
    Exit.FAILED: "the run failed, or something unforeseen happened",
    Exit.USAGE: "wrong usage",
    Exit.NOT_FOUND: "no such run, agent, hold or module",
    Exit.REFUSED: "refused: held, in conflict, or not allowed",
    Exit.UNREACHABLE: "no server or store answers",
    Exit.STOPPED: "the run that was waited for was stopped",
    Exit.LOST: "the run is lost: something of it may still be alive",
    Exit.TIMEOUT: "--wait was over before the run was",
    Exit.INTERRUPTED: "Ctrl-C: `run` was stopped by it; other commands leave the run alone",
    Exit.TERMINATED: "`run` was stopped by SIGTERM",
}

EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())


class CommandError(StoppableError):
    """Something a command cannot do; the message says what to do."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


def of_status(status: Status) -> Exit:
    """Return the exit code for the status of a run that was waited for."""
    match status:
        case Status.COMPLETED:
            return Exit.DONE
        case Status.FAILED:
            return Exit.FAILED
        case Status.STOPPED:
            return Exit.STOPPED
        case Status.LOST:
            return Exit.LOST
        case _:
            return Exit.TIMEOUT


def of_error(error: StoppableError) -> Exit:
    """Return the code of an error."""
    match error:
        case CommandError():
            return error.code
        case RunNotFound() | HoldNotFound() | AgentNotFound():
            return Exit.NOT_FOUND
        case RunHeld() | RunConflict() | PermissionError():
            return Exit.REFUSED
        case ConnectionError() | StoreError():
            return Exit.UNREACHABLE
        case InvalidArgument():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def reports_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Turn the errors of a command into one line on stderr and an exit code."""

    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except StoppableError as error:
            complain(_sentence(error))
            raise typer.Exit(of_error(error)) from None
        except ImportError as error:
            if "pip install" not in str(error):
                raise
            complain(str(error))
            raise typer.Exit(Exit.USAGE) from None
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output has gone
            raise typer.Exit(Exit.DONE) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            complain(f"the output could not be written: {error.strerror}")
            write_nowhere()
            sys.stderr.close()
            raise typer.Exit(Exit.FAILED) from None

    return command


def write_nowhere() -> None:
    """Redirect stdout to the null device: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _sentence(error: StoppableError) -> str:
    if isinstance(error, RunHeld):
        why = f" ({error.reason})" if error.reason else ""
        return f"new runs like this one are on hold{why}: `stoppable release {error.hold_id}` allows them again"
    return str(error)


def complain(message: str) -> None:
    """Print an error on one line of stderr."""
    one_line = " ".join(safe(message).split())
    colour = None if os.environ.get("NO_COLOR") else "red"
    typer.secho("error: ", fg=colour, bold=True, nl=False, err=True)
    typer.echo(one_line, err=True)
