"""``run_process`` and ``open_process``: commands that take part in the current run and end with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, Literal, TypedDict, Unpack, overload

from stoppable._engine.alarms import run_in_place
from stoppable._engine.processes.command import Argument, Command
from stoppable._engine.processes.errors import ProcessFailed
from stoppable._engine.processes.group import ProcessGroup
from stoppable._engine.processes.pipes import Capture, Incoming, Outgoing, Pipes
from stoppable._engine.processes.process import BlockingProcess, Codec, Process, S
from stoppable.errors import InvalidArgument

OUTPUT_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult(Generic[S]):
    """The exit code of a process (a negative number for a signal) and its output.

    ``truncated`` means that one stream had more than ``output_limit`` bytes and the rest was dropped.
    """

    returncode: int
    stdout: S
    stderr: S
    pid: int
    truncated: bool = False


class _Options(TypedDict, total=False):
    shell: bool
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    name: str | None
    encoding: str
    errors: str


class RunOptions(_Options, total=False):
    """The options of ``run_process``."""

    input: str | bytes | None
    check: bool
    output_limit: int


class OpenOptions(_Options, total=False):
    """The options of ``open_process``; streams take what ``subprocess.Popen`` takes, and are pipes by default."""

    stdin: int | IO[Any] | None
    stdout: int | IO[Any] | None
    stderr: int | IO[Any] | None


@overload
async def run_process(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[RunOptions]
) -> ProcessResult[str]: ...
@overload
async def run_process(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[RunOptions]
) -> ProcessResult[bytes]: ...
async def run_process(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[RunOptions]
) -> ProcessResult[Any]:
    """Run a command to its end and return its output; a boundary of kind ``spawn``.

    ``command`` is a list of arguments, or a string with ``shell=True``. ``input`` is sent to its stdin (default:
    nothing); ``check=True`` raises ProcessFailed unless the exit code is 0; ``output_limit`` is the number of bytes to
    keep of each stream; ``cwd``, ``env``, ``encoding`` and ``errors`` are those of ``subprocess``; ``name`` is the name
    under which it is listed while in flight.

    A graceful stop lets it finish, and its result is kept (G11). CANCEL sends TERM to its process group and to
    processes that escaped from it, KILL kills them. A cancel by other code ends it the same way. If it is cut short,
    its standard output so far is appended to the run's partial. Processes that it leaves running in the background are
    ended with it.
    """
    return await _run(command, text=text, blocking=False, **options)


@overload
def run_process_sync(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[RunOptions]
) -> ProcessResult[str]: ...
@overload
def run_process_sync(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[RunOptions]
) -> ProcessResult[bytes]: ...
def run_process_sync(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[RunOptions]
) -> ProcessResult[Any]:
    """Run a command to its end and return its output, in blocking code; see ``stoppable.run_process``.

    It raises AgentStopped if a stop of the run ended the process.
    """
    return run_in_place(_run(command, text=text, blocking=True, **options))


@overload
async def open_process(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[OpenOptions]
) -> Process[str]: ...
@overload
async def open_process(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[OpenOptions]
) -> Process[bytes]: ...
async def open_process(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[OpenOptions]
) -> Process[Any]:
    """Start a command to communicate with: ``async with await stoppable.open_process([…]) as process``.

    It is a boundary of kind ``spawn``, in flight while any process of its group is alive. Leaving the block, or the end
    of the run, ends the whole group: TERM, then KILL. A stop treats it as ``run_process`` does, except that its output
    does not become a partial: your code reads the output as it comes, and records what it wants to keep.
    """
    return await _open(command, text=text, blocking=False, **options)


@overload
def open_process_sync(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[OpenOptions]
) -> BlockingProcess[str]: ...
@overload
def open_process_sync(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[OpenOptions]
) -> BlockingProcess[bytes]: ...
def open_process_sync(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[OpenOptions]
) -> BlockingProcess[Any]:
    """Start a command to communicate with, in blocking code: ``with open_process([…]) as process``."""
    return BlockingProcess(run_in_place(_open(command, text=text, blocking=True, **options)))


async def _run(
    command: str | Sequence[Argument],
    *,
    text: bool,
    blocking: bool,
    input: str | bytes | None = None,  # noqa: A002 - the name in subprocess
    check: bool = False,
    output_limit: int = OUTPUT_LIMIT,
    encoding: str = "utf-8",
    errors: str = "replace",
    **place: Any,
) -> ProcessResult[Any]:
    codec = Codec(text=text, encoding=encoding, errors=errors)
    if isinstance(output_limit, bool) or not isinstance(output_limit, int) or output_limit < 0:
        raise InvalidArgument(f"output_limit is {output_limit!r}: use a number of bytes from 0 up")
    group = ProcessGroup(Command.of(command, **place), ends_with_leader=True)
    # Without input, stdin is empty: the process must not read from the terminal.
    stdin = Outgoing(group.waker.wake, codec.encode(input), closing=True) if input else subprocess.DEVNULL
    stdout, stderr = Capture(output_limit), Capture(output_limit)
    try:
        group.start(Pipes(stdin=stdin, stdout=stdout, stderr=stderr))
        await group.bell.wait(lambda: group.settled, blocking=blocking)
        returncode = group.exit_code()
    except BaseException:
        group.end()
        group.keep_output()
        raise
    result: ProcessResult[Any] = ProcessResult(
        returncode=returncode,
        stdout=codec.decode(stdout.value()),
        stderr=codec.decode(stderr.value()),
        pid=group.started_pid,
        truncated=stdout.truncated or stderr.truncated,
    )
    if check and returncode != 0:
        raise ProcessFailed(group.command.name, result)
    return result


async def _open(
    command: str | Sequence[Argument],
    *,
    text: bool,
    blocking: bool,
    stdin: int | IO[Any] | None = subprocess.PIPE,
    stdout: int | IO[Any] | None = subprocess.PIPE,
    stderr: int | IO[Any] | None = subprocess.PIPE,
    encoding: str = "utf-8",
    errors: str = "replace",
    **place: Any,
) -> Process[Any]:
    codec = Codec(text=text, encoding=encoding, errors=errors)
    group = ProcessGroup(Command.of(command, **place), ends_with_leader=False)
    resume = group.waker.wake
    pipes = Pipes(
        stdin=Outgoing(resume) if stdin == subprocess.PIPE else stdin,
        stdout=Incoming(resume) if stdout == subprocess.PIPE else stdout,
        stderr=Incoming(resume) if stderr == subprocess.PIPE else stderr,
    )
    process: Process[Any] = Process(group, pipes, codec, blocking=blocking)
    try:
        group.start(pipes)
        await group.bell.wait(lambda: group.pid is not None or group.settled, blocking=blocking)
    except BaseException:
        group.end()
        raise
    if group.pid is None:
        group.exit_code()  # raises: it was not started
    return process
