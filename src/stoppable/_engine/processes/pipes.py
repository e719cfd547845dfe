"""The pipes of a process, served by one thread."""

from __future__ import annotations

import functools
import os
import selectors
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from stoppable._engine.alarms import Bell
from stoppable._engine.processes.waker import Waker

_CHUNK = 1 << 16
_HIGH_WATER = 1 << 18
_LARGEST_PIPE = 1 << 21  # twice what Linux allows, if nobody changed it


class Sink:
    """Where what a process writes goes; fed by the serving thread."""

    def wants_more(self, *, draining: bool = False) -> bool:  # noqa: ARG002 - one that fills up looks at it
        """Return whether to go on reading; if not, the process waits at a full pipe."""
        return True

    def feed(self, data: bytes) -> None:
        """Take what the process wrote."""
        raise NotImplementedError

    def end(self) -> None:
        """Note that nothing more comes."""


class Capture(Sink):
    """Keeps the first ``limit`` bytes, and lets the process write on."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self.truncated = False

    def feed(self, data: bytes) -> None:
        """Keep what fits."""
        kept = data[: self._limit - self._size]
        self.truncated = self.truncated or len(kept) < len(data)
        self._chunks.append(kept)
        self._size += len(kept)

    def value(self) -> bytes:
        """Return what there is so far."""
        return b"".join(list(self._chunks))


class Incoming(Sink):
    """Holds what was not read yet; the process waits when it is too much."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._data = b""
        self._at = 0  # where the unread part begins: cutting off every line would copy the rest each time
        self._ended = False
        self.bell: Bell = Bell()

    def wants_more(self, *, draining: bool = False) -> bool:
        """Return whether there is room; for what a dead process left in the pipe there always is."""
        return len(self._data) - self._at < (_LARGEST_PIPE if draining else _HIGH_WATER)

    def feed(self, data: bytes) -> None:
        """Add what the process wrote."""
        with self._lock:
            self._data = self._data[self._at :] + data
            self._at = 0
        self.bell.ring()

    def end(self) -> None:
        """Let readers see the end."""
        self._ended = True
        self.bell.ring()

    def has_data(self) -> bool:
        """Return whether ``take`` gives something, if only the end."""
        return self._ended or self._at < len(self._data)

    def has_line(self) -> bool:
        """Return whether ``take_line`` gives something, if only the end; a line that fills the buffer is cut there."""
        return self._ended or not self.wants_more() or self._data.find(b"\n", self._at) >= 0

    def take(self, size: int) -> bytes:
        """Return up to ``size`` bytes, or all for -1; nothing at the end."""
        with self._lock:
            return self._cut(len(self._data) if size < 0 else self._at + size)

    def take_line(self) -> bytes:
        """Return what is there up to the next newline; nothing at the end."""
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
    """Holds what the process did not take yet."""

    def __init__(self, resume: Callable[[], None], data: bytes = b"", *, closing: bool = False) -> None:
        self._resume = resume
        self._lock = threading.Lock()
        self._data = bytearray(data)
        self.closing: bool = closing  # nothing more comes; the pipe is closed when all was taken
        self.broken: bool = False  # the process takes nothing any more
        self.bell: Bell = Bell()

    def put(self, data: bytes) -> None:
        """Add something to write."""
        with self._lock:
            self._data += data
        self._resume()

    def close(self) -> None:
        """Let the process see the end once it has taken everything."""
        self.closing = True
        self._resume()

    def has_room(self) -> bool:
        """Return whether a writer may go on."""
        return self.broken or len(self._data) < _HIGH_WATER

    def has_data(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._data)

    def write_to(self, handle: int) -> None:
        """Write what the pipe takes now."""
        with self._lock:
            chunk = bytes(self._data[:_CHUNK])
        written = os.write(handle, chunk)
        with self._lock:
            del self._data[:written]
        self.bell.ring()

    def break_off(self) -> None:
        """Drop what is left: nobody takes it any more."""
        self.broken = True
        with self._lock:
            self._data.clear()
        self.bell.ring()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipes:
    """What the standard streams are connected to: a buffer of ours, or what ``subprocess.Popen`` takes."""

    stdin: Outgoing | int | IO[Any] | None
    stdout: Sink | int | IO[Any] | None
    stderr: Sink | int | IO[Any] | None


class Pump:
    """Moves data between the pipes of one process and their buffers, a turn at a time."""

    def __init__(self, waker: Waker) -> None:
        self._selector = selectors.PollSelector()
        waker.register_in(self._selector)
        self._outputs: dict[IO[Any], Sink] = {}
        self._inputs: dict[IO[Any], Outgoing] = {}
        self.draining = False  # the process is dead, and what it left in the pipes is read

    def watch(self, handle: int) -> None:
        """Let a turn end while a descriptor is readable."""
        self._selector.register(handle, selectors.EVENT_READ, lambda: None)

    def unwatch(self, handle: int) -> None:
        """Forget a descriptor."""
        self._selector.unregister(handle)

    def read_from(self, file: IO[Any], sink: Sink) -> None:
        """Serve a pipe that the process writes to."""
        self._outputs[file] = sink

    def write_to(self, file: IO[Any], source: Outgoing) -> None:
        """Serve a pipe that the process reads from."""
        os.set_blocking(file.fileno(), False)
        self._inputs[file] = source

    @property
    def drained(self) -> bool:
        """Whether everything was read that the process wrote."""
        return not self._outputs

    def turn(self, timeout: float) -> None:
        """Wait until something can be done, and do it."""
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
        """Read no more, also if somebody still holds the other end."""
        for file in list(self._outputs):
            self._end_output(file)

    def end_inputs(self) -> None:
        """Write no more: the process takes nothing any more."""
        for file in list(self._inputs):
            self._end_input(file)

    def close(self) -> None:
        """Close everything."""
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
