"""The pipes of a process, served by one thread."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from stoppable._engine.control import Bell

_CHUNK = 1 << 16
_HIGH_WATER = 1 << 18
_LARGEST_PIPE = 1 << 21  # twice the default maximum of Linux


class Waker:
    """Wakes one thread from its ``select``, through a pipe."""

    def __init__(self) -> None:
        # Re-entrant: a signal handler may call ``wake`` while the same thread is in it.
        self._lock = threading.RLock()
        self._ends: tuple[int, int] | None = None

    def open(self) -> None:
        """Open the pipe; earlier calls of ``wake`` do nothing, because the thread checks for work when it begins."""
        self._ends = os.pipe()
        for end in self._ends:
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Make the current or next ``select`` return."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full: the thread will wake anyway
            if self._ends is not None:
                os.write(self._ends[1], b"\0")

    def register_in(self, selector: selectors.BaseSelector) -> None:
        """Register the pipe in the selector of the thread."""
        assert self._ends is not None, "opened before"
        handle = self._ends[0]
        selector.register(handle, selectors.EVENT_READ, lambda: os.read(handle, _CHUNK))

    def close(self) -> None:
        """Close the pipe, under the lock: ``wake`` must not write to another file that reuses the descriptor."""
        with self._lock:
            ends, self._ends = self._ends or (), None
            for end in ends:
                os.close(end)


class OutputSink:
    """Receives the output of a process, on the thread that serves the pipes."""

    def wants_more(self, *, draining: bool = False) -> bool:  # noqa: ARG002 - for sinks that can fill up
        """Return whether to continue reading; if not, the process blocks once its pipe is full."""
        return True

    def feed(self, data: bytes) -> None:
        """Receive a chunk of output."""
        raise NotImplementedError

    def end(self) -> None:
        """Record the end of the output."""


class Capture(OutputSink):
    """Keeps the first ``limit`` bytes and drops the rest, so that the process never blocks."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self.truncated = False

    def feed(self, data: bytes) -> None:
        """Keep as much as the limit allows."""
        chunk = data[: self._limit - self._size]
        self.truncated = self.truncated or len(chunk) < len(data)
        self._chunks.append(chunk)
        self._size += len(chunk)

    def value(self) -> bytes:
        """Return the bytes kept so far."""
        return b"".join(list(self._chunks))


class Incoming(OutputSink):
    """Buffers output until it is read; the process blocks while the buffer is full."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._data = b""
        self._at = 0  # where the unread part begins: removing every line would copy the rest each time
        self._has_ended = False
        self.bell: Bell = Bell()

    def wants_more(self, *, draining: bool = False) -> bool:
        """Return whether there is room; there always is for the output that a dead process left in the pipe."""
        return len(self._data) - self._at < (_LARGEST_PIPE if draining else _HIGH_WATER)

    def feed(self, data: bytes) -> None:
        """Add a chunk of output."""
        with self._lock:
            self._data = self._data[self._at :] + data
            self._at = 0
        self.bell.ring()

    def end(self) -> None:
        """Record the end of the output, and wake the readers."""
        self._has_ended = True
        self.bell.ring()

    def has_data(self) -> bool:
        """Return whether there is unread data, or the end was reached."""
        return self._has_ended or self._at < len(self._data)

    def has_line(self) -> bool:
        """Return whether there is a line, or the end was reached; a line that fills the buffer is split there."""
        return self._has_ended or not self.wants_more() or self._data.find(b"\n", self._at) >= 0

    def take(self, size: int) -> bytes:
        """Return up to ``size`` bytes, or all of them for -1; empty at the end."""
        with self._lock:
            return self._cut(len(self._data) if size < 0 else self._at + size)

    def take_line(self) -> bytes:
        """Return the data up to the next newline, or all of it if there is none; empty at the end."""
        with self._lock:
            return self._cut(self._data.find(b"\n", self._at) + 1 or len(self._data))

    def _cut(self, end: int) -> bytes:
        was_full = not self.wants_more()
        data = self._data[self._at : end]
        self._at += len(data)
        if was_full and self.wants_more():
            self._resume()
        return data


class Outgoing:
    """Buffers input until the process reads it."""

    def __init__(self, resume: Callable[[], None], data: bytes = b"", *, closing: bool = False) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._data = bytearray(data)
        self.closing: bool = closing  # the input is complete; close the pipe once all of it is written
        self.broken: bool = False  # the process no longer reads
        self.bell: Bell = Bell()

    def put(self, data: bytes) -> None:
        """Add data to write."""
        with self._lock:
            self._data += data
        self._resume()

    def close(self) -> None:
        """Close the pipe once all data is written."""
        self.closing = True
        self._resume()

    def has_room(self) -> bool:
        """Return whether a writer may continue."""
        return self.broken or len(self._data) < _HIGH_WATER

    def has_data(self) -> bool:
        """Return whether there is data to write."""
        return bool(self._data)

    def write_to(self, handle: int) -> None:
        """Write as much as the pipe accepts now."""
        with self._lock:
            chunk = bytes(self._data[:_CHUNK])
        written = os.write(handle, chunk)
        with self._lock:
            del self._data[:written]
        self.bell.ring()

    def break_off(self) -> None:
        """Drop the remaining data, because the process no longer reads."""
        self.broken = True
        with self._lock:
            self._data.clear()
        self.bell.ring()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """What the standard streams are connected to: a buffer, or anything that ``subprocess.Popen`` takes."""

    stdin: Outgoing | int | IO[Any] | None
    stdout: OutputSink | int | IO[Any] | None
    stderr: OutputSink | int | IO[Any] | None


class Pump:
    """Moves data between the pipes of one process and their buffers, a turn at a time."""

    def __init__(self, waker: Waker) -> None:
        self._selector = selectors.PollSelector()
        waker.register_in(self._selector)
        self._outputs: dict[IO[Any], OutputSink] = {}
        self._inputs: dict[IO[Any], Outgoing] = {}
        self.draining = False  # the process has ended or was killed, and the rest of its output is read

    def watch(self, handle: int) -> None:
        """Let a turn return when a descriptor is readable."""
        self._selector.register(handle, selectors.EVENT_READ, lambda: None)

    def unwatch(self, handle: int) -> None:
        """Stop watching a descriptor."""
        self._selector.unregister(handle)

    def read_from(self, file: IO[Any], sink: OutputSink) -> None:
        """Serve a pipe that the process writes to."""
        self._outputs[file] = sink

    def write_to(self, file: IO[Any], source: Outgoing) -> None:
        """Serve a pipe that the process reads from."""
        os.set_blocking(file.fileno(), False)
        self._inputs[file] = source

    @property
    def is_drained(self) -> bool:
        """Whether all output of the process was read."""
        return not self._outputs

    def turn(self, timeout: float) -> None:
        """Wait until data can be moved, a watched descriptor is readable or the time is up, and move the data."""
        for output, sink in self._outputs.items():
            self._serve(
                output,
                selectors.EVENT_READ,
                functools.partial(self._read, output),
                wanted=sink.wants_more(draining=self.draining),
            )
        for file, source in list(self._inputs.items()):
            if source.closing and not source.has_data():
                self._end_input(file)
            else:
                self._serve(file, selectors.EVENT_WRITE, functools.partial(self._write, file), wanted=source.has_data())
        for key, _ in self._selector.select(timeout):
            key.data()

    def end_outputs(self) -> None:
        """Stop reading, even if another process still holds the other end."""
        for file in list(self._outputs):
            self._end_output(file)

    def end_inputs(self) -> None:
        """Stop writing, because the process no longer reads."""
        for file in list(self._inputs):
            self._end_input(file)

    def close(self) -> None:
        """Close the pipes and the selector."""
        self.end_inputs()
        self.end_outputs()
        self._selector.close()

    def _serve(self, file: IO[Any], events: int, do: Callable[[], None], *, wanted: bool) -> None:
        is_served = file in self._selector.get_map()
        if wanted and not is_served:
            self._selector.register(file, events, do)
        elif is_served and not wanted:
            self._selector.unregister(file)

    def _read(self, file: IO[Any]) -> None:
        data = os.read(file.fileno(), _CHUNK)
        if data:
            self._outputs[file].feed(data)
        else:
            self._end_output(file)

    def _write(self, file: IO[Any]) -> None:
        try:
            self._inputs[file].write_to(file.fileno())
        except BlockingIOError:
            pass
        except OSError:  # the process has closed its end
            self._end_input(file)

    def _end_output(self, file: IO[Any]) -> None:
        self._serve(file, 0, file.close, wanted=False)
        file.close()
        self._outputs.pop(file).end()

    def _end_input(self, file: IO[Any]) -> None:
        self._serve(file, 0, file.close, wanted=False)
        file.close()
        self._inputs.pop(file).break_off()
