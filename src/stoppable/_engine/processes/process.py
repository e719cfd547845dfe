"""``run_process`` and ``open_process``: commands that take part in the current run, with their streams.

The blocking classes drive the coroutines of the async classes, which then block the thread and never suspend.
"""

from __future__ import annotations

import codecs
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack, overload

from stoppable._core.boundary import check
from stoppable._engine.control import run_in_place
from stoppable._engine.processes.command import Argument, Command, ProcessFailed
from stoppable._engine.processes.group import ProcessGroup
from stoppable._engine.processes.pipes import Capture, Incoming, Outgoing, Pipes
from stoppable.errors import AgentStopped, InvalidArgument

S = TypeVar("S", bound=str | bytes)
T = TypeVar("T")


class Codec:
    """Encodes the input and decodes the output of a process, or leaves both as bytes."""

    def __init__(self, *, text: bool, encoding: str, errors: str) -> None:
        try:
            self._incremental = codecs.getincrementaldecoder(encoding)
            codecs.lookup_error(errors)
        except LookupError as error:
            raise InvalidArgument(f"{error}: use a name that Python knows, such as utf-8 and replace") from None
        self._text = text
        self._encoding = encoding
        self._errors = errors

    def encode(self, data: str | bytes) -> bytes:
        """Return the bytes to write."""
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        if not self._text or not isinstance(data, str):
            kinds = "text or bytes" if self._text else "bytes, or leave out text=False"
            raise InvalidArgument(f"cannot write {type(data).__name__} to a process: pass {kinds}")
        return data.encode(self._encoding, self._errors)

    def decode(self, data: bytes) -> Any:
        """Return the whole output of a process, as text or bytes."""
        return data.decode(self._encoding, self._errors) if self._text else data

    def decoder(self) -> Callable[[bytes, bool], Any]:
        """Return a function that decodes the output piece by piece."""
        if not self._text:
            return lambda data, _final: data
        if "\n".encode(self._encoding) != b"\n":
            raise InvalidArgument(f"cannot split lines in {self._encoding}: use text=False and decode them yourself")
        return self._incremental(self._errors).decode


class OutputReader(Generic[S]):
    """Reads the output of a process.

    Iteration raises AgentStopped between lines if the run was told to stop (G11). ``read`` and ``readline`` do not, so
    that code can shut the process down in an orderly way. A line of more than 256 KiB comes in pieces. The stream ends
    at most one second after the process, even if another process still holds the pipe.
    """

    def __init__(self, incoming: Incoming, codec: Codec, *, blocking: bool) -> None:
        self._incoming = incoming
        self._decode = codec.decoder()
        self._empty: Any = codec.decode(b"")
        self._blocking = blocking

    async def read(self, size: int = -1) -> S:
        """Read up to ``size`` bytes, as soon as there are any, or for -1 everything up to the end; empty at the end."""
        incoming = self._incoming
        pieces = [await self._take(incoming.has_data, lambda: incoming.take(size))] if size else []
        while size < 0 and pieces[-1]:
            pieces.append(await self._take(incoming.has_data, lambda: incoming.take(size)))
        joined: S = self._empty.join(pieces)
        return joined

    async def readline(self) -> S:
        """Read a line with its newline; empty at the end."""
        return await self._take(self._incoming.has_line, self._incoming.take_line)

    async def _take(self, ready: Callable[[], bool], take: Callable[[], bytes]) -> S:
        while True:
            await self._incoming.bell.wait(ready, blocking=self._blocking)
            data = take()
            piece: S = self._decode(data, not data)
            if piece or not data:  # otherwise it was the beginning of a character
                return piece

    def __aiter__(self) -> AsyncIterator[S]:
        return self

    async def __anext__(self) -> S:
        check()
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line


class Writer(Generic[S]):
    """Writes the input of a process."""

    def __init__(self, outgoing: Outgoing, codec: Codec, *, blocking: bool) -> None:
        self._outgoing = outgoing
        self._codec = codec
        self._blocking = blocking

    async def write(self, data: S) -> None:
        """Write, and wait while the buffer is full; raise AgentStopped if the run was told to stop.

        For a shell or an interpreter every line is a separate effect, and none may begin after a stop (G1).
        """
        check()
        outgoing = self._outgoing
        encoded = self._codec.encode(data)
        if not outgoing.closing and not outgoing.broken:
            outgoing.put(encoded)
            await outgoing.bell.wait(outgoing.has_room, blocking=self._blocking)
        if outgoing.broken or outgoing.closing:
            raise BrokenPipeError("cannot write to the process: it has ended, or the stream was closed")

    def close(self) -> None:
        """Close the input of the process, once everything is written."""
        self._outgoing.close()


class Process(Generic[S]):
    """A process and its group; leaving the block ends both."""

    def __init__(self, group: ProcessGroup, pipes: Pipes, codec: Codec, *, blocking: bool) -> None:
        self._group = group
        self._blocking = blocking
        self._stdin: Writer[S] | None = None
        if isinstance(pipes.stdin, Outgoing):
            self._stdin = Writer(pipes.stdin, codec, blocking=blocking)
        self._stdout, self._stderr = (
            OutputReader[S](sink, codec, blocking=blocking) if isinstance(sink, Incoming) else None
            for sink in (pipes.stdout, pipes.stderr)
        )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group and session."""
        return self._group.started_pid

    @property
    def returncode(self) -> int | None:
        """The exit code, a negative number for a signal, or None while the process runs."""
        return self._group.returncode

    @property
    def stdin(self) -> Writer[S]:
        """The standard input of the process."""
        return _require_stream("stdin", self._stdin)

    @property
    def stdout(self) -> OutputReader[S]:
        """The standard output of the process."""
        return _require_stream("stdout", self._stdout)

    @property
    def stderr(self) -> OutputReader[S]:
        """The standard error of the process."""
        return _require_stream("stderr", self._stderr)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the group, as a terminal does; does nothing if the process has ended."""
        self._group.send_signal(signum)

    async def wait(self) -> int:
        """Wait for the end and return the exit code; raise AgentStopped if the stop of the run ended it."""
        group = self._group
        await group.bell.wait(lambda: group.returncode is not None or group.settled, blocking=self._blocking)
        return group.exit_code()

    async def aclose(self) -> None:
        """End the process and its group with TERM, then KILL; return when none of them is alive."""
        self._group.end()
        await self._group.bell.wait(lambda: self._group.settled, blocking=self._blocking)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._group.end()
        # A cancel or Ctrl-C propagates at once (G9); the group still belongs to the run, and ends in the background.
        if error is None or isinstance(error, Exception | AgentStopped):
            await self.aclose()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._group.command.name} {self._group.pid} {self.returncode}>"


class BlockingReader(Generic[S]):
    """Reads the output of a process, in blocking code; see ``OutputReader``."""

    def __init__(self, reader: OutputReader[S]) -> None:
        self._reader = reader

    def read(self, size: int = -1) -> S:
        """Read up to ``size`` bytes, as soon as there are any, or for -1 everything up to the end; empty at the end."""
        return run_in_place(self._reader.read(size))

    def readline(self) -> S:
        """Read a line with its newline; empty at the end."""
        return run_in_place(self._reader.readline())

    def __iter__(self) -> Iterator[S]:
        return self

    def __next__(self) -> S:
        try:
            return run_in_place(self._reader.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class BlockingWriter(Generic[S]):
    """Writes the input of a process, in blocking code; see ``Writer``."""

    def __init__(self, writer: Writer[S]) -> None:
        self._writer = writer

    def write(self, data: S) -> None:
        """Write, and wait while the buffer is full; raise AgentStopped if the run was told to stop."""
        run_in_place(self._writer.write(data))

    def close(self) -> None:
        """Close the input of the process, once everything is written."""
        self._writer.close()


class BlockingProcess(Generic[S]):
    """A process and its group, for blocking code; leaving the block ends both."""

    def __init__(self, process: Process[S]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group and session."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, a negative number for a signal, or None while the process runs."""
        return self._process.returncode

    @property
    def stdin(self) -> BlockingWriter[S]:
        """The standard input of the process."""
        return BlockingWriter(self._process.stdin)

    @property
    def stdout(self) -> BlockingReader[S]:
        """The standard output of the process."""
        return BlockingReader(self._process.stdout)

    @property
    def stderr(self) -> BlockingReader[S]:
        """The standard error of the process."""
        return BlockingReader(self._process.stderr)

    def send_signal(self, signum: int) -> None:
        """Send a signal to the group, as a terminal does; does nothing if the process has ended."""
        self._process.send_signal(signum)

    def wait(self) -> int:
        """Wait for the end and return the exit code; raise AgentStopped if the stop of the run ended it."""
        return run_in_place(self._process.wait())

    def close(self) -> None:
        """End the process and its group with TERM, then KILL; return when none of them is alive."""
        run_in_place(self._process.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        run_in_place(self._process.__aexit__(kind, error, tb))

    def __repr__(self) -> str:
        return repr(self._process).replace("<Process", "<BlockingProcess", 1)


def _require_stream(name: str, stream: T | None) -> T:
    if stream is None:
        raise InvalidArgument(f"{name} of this process is not a pipe: leave out {name}= when you open it")
    return stream


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


class RunProcessOptions(_Options, total=False):
    """The options of ``run_process``."""

    input: str | bytes | None
    check: bool
    output_limit: int


class OpenProcessOptions(_Options, total=False):
    """The options of ``open_process``; streams take what ``subprocess.Popen`` takes, and are pipes by default."""

    stdin: int | IO[Any] | None
    stdout: int | IO[Any] | None
    stderr: int | IO[Any] | None


@overload
async def run_process(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[RunProcessOptions]
) -> ProcessResult[str]: ...
@overload
async def run_process(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[RunProcessOptions]
) -> ProcessResult[bytes]: ...
async def run_process(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[RunProcessOptions]
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
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[RunProcessOptions]
) -> ProcessResult[str]: ...
@overload
def run_process_sync(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[RunProcessOptions]
) -> ProcessResult[bytes]: ...
def run_process_sync(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[RunProcessOptions]
) -> ProcessResult[Any]:
    """Run a command to its end and return its output, in blocking code; see ``stoppable.run_process``.

    It raises AgentStopped if a stop of the run ended the process.
    """
    return run_in_place(_run(command, text=text, blocking=True, **options))


@overload
async def open_process(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[OpenProcessOptions]
) -> Process[str]: ...
@overload
async def open_process(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[OpenProcessOptions]
) -> Process[bytes]: ...
async def open_process(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[OpenProcessOptions]
) -> Process[Any]:
    """Start a command to communicate with: ``async with await stoppable.open_process([…]) as process``.

    It is a boundary of kind ``spawn``, in flight while any process of its group is alive. Leaving the block, or the end
    of the run, ends the whole group: TERM, then KILL. A stop treats it as ``run_process`` does, except that its output
    does not become a partial: your code reads the output as it comes, and records what it wants to keep.
    """
    return await _open(command, text=text, blocking=False, **options)


@overload
def open_process_sync(
    command: str | Sequence[Argument], *, text: Literal[True] = True, **options: Unpack[OpenProcessOptions]
) -> BlockingProcess[str]: ...
@overload
def open_process_sync(
    command: str | Sequence[Argument], *, text: Literal[False], **options: Unpack[OpenProcessOptions]
) -> BlockingProcess[bytes]: ...
def open_process_sync(
    command: str | Sequence[Argument], *, text: bool = True, **options: Unpack[OpenProcessOptions]
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
