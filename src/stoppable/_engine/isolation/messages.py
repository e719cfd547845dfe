"""What a run and its worker process say to each other: messages with their length in front.

They are pickled. What a worker says is not believed: only our own messages are made of it, and what an agent made (a
result, an item, a partial, an error) is in them as bytes, which ``Values`` opens.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from stoppable._core.budget import Left as LeftOfLimit
from stoppable._core.outcome import Outcome
from stoppable._core.policy import Policy
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode
from stoppable._core.stop import Abandoned
from stoppable._engine.isolation.values import LIMIT, Values, checked, refused
from stoppable._engine.processes.table import open_pidfd
from stoppable.errors import InvalidArgument

_logger = logging.getLogger("stoppable")

_HEADER = struct.Struct("!Q")
_LOOK_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgent:
    """To the worker: what to run."""

    path: list[str]
    agent: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    run_id: str
    name: str
    owner: str | None
    labels: Mapping[str, str]
    policy: Policy
    left: Mapping[str, LeftOfLimit]
    values: Values


@dataclass(frozen=True, slots=True)
class StopRequest:
    """To the worker: stop one of its runs, with the number to acknowledge."""

    number: int
    run_id: str
    mode: Mode
    reason: Reason
    grace: float | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """From the worker: its gate is closed; and whether its run had never looked, so that it is cancelled sooner."""

    number: int
    is_blind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Born:
    """From the worker: a run of it has a child; one that was stopped before it began never does."""

    run_id: str
    parent_id: str
    name: str
    owner: str | None
    labels: Mapping[str, str]
    policy: Policy
    has_begun: bool


@dataclass(frozen=True, slots=True)
class Stopping:
    """From the worker: one of its runs was stopped there."""

    run_id: str
    mode: Mode
    reason: Reason
    grace: float | None


@dataclass(frozen=True, slots=True)
class Entered:
    """From the worker: a boundary was entered."""

    run_id: str
    key: int
    kind: str
    name: str | None
    after_stop: bool


@dataclass(frozen=True, slots=True)
class Left:
    """From the worker: a boundary was left."""

    key: int
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class Spent:
    """From the worker: a boundary was turned back because a limit is used up; it counts, so that the limit is felt."""

    run_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Told:
    """From the worker: what one of its runs has so far."""

    run_id: str
    value: object
    appended: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """From the worker: progress."""

    run_id: str
    kind: str
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class Noted:
    """From the worker: facts about one of its runs."""

    run_id: str
    metadata: dict[str, object]


@dataclass(frozen=True, slots=True)
class Item:
    """From the worker: what a generator yielded."""

    value: object


@dataclass(frozen=True, slots=True)
class Ended:
    """From the worker: how one of its runs ended, and what of it could not be."""

    run_id: str
    outcome: Outcome[Any]
    delivered: bool
    abandoned: tuple[Abandoned, ...] = ()
    library_threads: tuple[str, ...] = ()


Message: TypeAlias = (
    StartAgent
    | StopRequest
    | Acknowledged
    | Born
    | Stopping
    | Entered
    | Left
    | Spent
    | Told
    | Progress
    | Noted
    | Item
    | Ended
)


class Line:
    """One end of the socket; many threads may send, one receives.

    Given the process at the other end, it is over once that has died: one that it forked may hold the socket, too.
    ``values`` is how that process sends what its agent made; the worker's own end is told with its start.
    """

    def __init__(
        self,
        connection: socket.socket,
        process: subprocess.Popen[bytes] | None = None,
        values: Values = Values.PICKLE,
    ) -> None:
        self.values = values
        self._connection = connection
        self._sending = threading.Lock()
        self._process = process
        self._pidfd = None if process is None else open_pidfd(process.pid)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)

    def send(self, message: Message) -> None:
        """Send a message; raises InvalidArgument if it cannot be pickled or is too large."""
        self.send_packed(pack(message, self.values))

    def send_packed(self, packed: bytes) -> None:
        """Send a message that was packed before."""
        with self._sending:
            self._connection.sendall(_HEADER.pack(len(packed)) + packed)

    def receive(self) -> Message | None:
        """Wait for a message; None when the other end has gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        length = _HEADER.unpack(header)[0]
        packed = self._exactly(length) if length <= LIMIT else None
        if packed is None:
            return None
        if self._process is None:
            message: Message = pickle.loads(packed)  # noqa: S301 - from the process that started us
            return message
        return _opened(checked(packed), self.values)

    def hang_up(self) -> None:
        """End the conversation: whoever waits to send or to receive, here and at the other end, waits no longer."""
        with contextlib.suppress(OSError):  # the other end has
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the socket, which nobody else may be using any more."""
        self._connection.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _exactly(self, count: int) -> bytes | None:
        buffer = bytearray()
        while len(buffer) < count:
            try:
                self._wait()
                # Without waiting: nothing is there if it was the death that was waited for.
                chunk = self._connection.recv(min(count - len(buffer), 1 << 20), socket.MSG_DONTWAIT)
            except OSError:
                return None
            if not chunk:
                return None
            buffer += chunk
        return bytes(buffer)

    def _wait(self) -> None:
        """Wait until something can be read, or nobody is there any more who could send it."""
        look_every = _LOOK_MS if self._process is not None and self._pidfd is None else None
        while not (ready := self._poll.poll(look_every)):
            if self._process is not None and self._process.poll() is not None:
                return
        if any(descriptor == self._pidfd for descriptor, _ in ready):
            # What the process had sent can still be read (Linux, as the pidfd); what its forks send now is refused.
            self._connection.shutdown(socket.SHUT_RD)


class Sender:
    """What is to be sent, in its order, by a thread of its own: a process that does not read holds up only that one."""

    def __init__(self, line: Line, first: bytes) -> None:
        self._line = line
        self._first = first
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # reentrant, for a signal handler
        self._thread = threading.Thread(target=self._send_all, name="stoppable-tell", daemon=True)

    def put(self, message: Message) -> None:
        """Have a message sent; returns at once, from any thread and from a signal handler."""
        self._waiting.put(message)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Drop what is left; the line was hung up, which ends a send that is stuck."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # the other end has gone, or is about to
            self._line.send_packed(self._first)
            while (message := self._waiting.get()) is not None:
                try:
                    self._line.send(message)
                except InvalidArgument:
                    _logger.exception("a stop could not be sent to a worker process")


def pack(message: Message, values: Values = Values.PICKLE) -> bytes:
    """Make bytes of a message, or say what about it cannot be sent."""
    what = type(message).__name__
    try:
        packed = pickle.dumps(_sealed(message, values), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise refused(what, error) from error
    if len(packed) > LIMIT:
        raise InvalidArgument(
            f"cannot send {what} of {len(packed):,} bytes to or from a worker process: the limit is {LIMIT:,}. "
            "Pass the name of a file instead"
        )
    return packed


# Where in a message what an agent made is; on the way it is bytes there, which no checker knows.
_VALUES: dict[type, str] = {Told: "value", Item: "value", Progress: "data"}


def _sealed(message: Any, values: Values) -> Message:
    """Return a message in which what an agent made is bytes."""
    name = _VALUES.get(type(message))
    if name is not None:
        message = replace(message, **{name: values.dump(getattr(message, name))})
    elif isinstance(message, Ended):
        outcome: Any = message.outcome
        result, partial, error = (values.dump(made) for made in (outcome.result, outcome.partial, outcome.error))
        message = replace(message, outcome=outcome._replace(result=result, partial=partial, error=error))
    sealed: Message = message
    return sealed


def _opened(message: Any, values: Values) -> Message:
    """Return a message as it was before it was sealed."""
    name = _VALUES.get(type(message))
    if name is not None:
        message = replace(message, **{name: values.load(getattr(message, name))})
    elif isinstance(message, Ended):
        outcome: Any = message.outcome
        result, partial = values.load(outcome.result), values.load(outcome.partial)
        outcome = outcome._replace(result=result, partial=partial, error=values.load_error(outcome.error))
        message = replace(message, outcome=outcome)
    opened: Message = message
    return opened
