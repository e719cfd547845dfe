"""An open process and its streams, for async and for blocking code.

The blocking classes drive the coroutines of the async classes, which then block the thread and never suspend.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stoppable._core.boundary import check
from stoppable._engine.alarms import run_in_place
from stoppable._engine.processes.group import ProcessGroup
from stoppable._engine.processes.pipes import Incoming, Outgoing, Pipes
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
        return _piped("stdin", self._stdin)

    @property
    def stdout(self) -> OutputReader[S]:
        """The standard output of the process."""
        return _piped("stdout", self._stdout)

    @property
    def stderr(self) -> OutputReader[S]:
        """The standard error of the process."""
        return _piped("stderr", self._stderr)

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


def _piped(name: str, stream: T | None) -> T:
    if stream is None:
        raise InvalidArgument(f"{name} of this process is not a pipe: leave out {name}= when you open it")
    return stream
