"""The messages between a run and its agent process, each preceded by its length.

Messages are pickled. Those from an agent process are not trusted: only messages and their parts are unpickled. The
agent's values in them (a result, an item, a partial, an error) are bytes, which ``Values`` decodes.
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
from stoppable._core.reach import Abandoned
from stoppable._core.reason import Reason
from stoppable._core.state import Fate, Mode
from stoppable._engine.isolation.values import LIMIT, Values, checked, refused
from stoppable._engine.processes.table import open_pidfd
from stoppable.errors import InvalidArgument

_logger = logging.getLogger("stoppable")

_HEADER = struct.Struct("!Q")
_LOOK_MS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAgent:
    """To the child: what to run."""

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
    """To the child: stop one of its runs, with the number to acknowledge."""

    number: int
    run_id: str
    mode: Mode
    reason: Reason
    grace: float | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """From the child: the gate of the run is closed; a run that is blind is cancelled sooner."""

    number: int
    is_blind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Born:
    """From the child: one of its runs has started a child run."""

    run_id: str
    parent_id: str
    name: str
    owner: str | None
    labels: Mapping[str, str]
    policy: Policy
    has_begun: bool


@dataclass(frozen=True, slots=True)
class Stopping:
    """From the child: one of its runs was stopped there."""

    run_id: str
    mode: Mode
    reason: Reason
    grace: float | None


@dataclass(frozen=True, slots=True)
class Entered:
    """From the child: a boundary was entered."""

    run_id: str
    key: int
    kind: str
    name: str | None
    after_stop: bool


@dataclass(frozen=True, slots=True)
class Left:
    """From the child: a boundary was left."""

    key: int
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class Spent:
    """From the child: a boundary was refused because a limit is used up; the parent counts it too."""

    run_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class Told:
    """From the child: the partial of one of its runs."""

    run_id: str
    value: object
    appended: bool


@dataclass(frozen=True, slots=True)
class Said:
    """From the child: what models have said so far in one of its runs that is being stopped."""

    run_id: str
    text: object


@dataclass(frozen=True, slots=True)
class Progress:
    """From the child: progress."""

    run_id: str
    kind: str
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class Noted:
    """From the child: facts about one of its runs."""

    run_id: str
    metadata: dict[str, object]


@dataclass(frozen=True, slots=True)
class Item:
    """From the child: an item of a generator."""

    value: object


@dataclass(frozen=True, slots=True)
class Ended:
    """From the child: how one of its runs ended, and what could not be ended."""

    run_id: str
    outcome: Outcome[Any]
    delivered: bool
    abandoned: tuple[Abandoned, ...] = ()
    library_threads: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()


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
    | Said
    | Progress
    | Noted
    | Item
    | Ended
)


class Line:
    """One end of the socket; many threads may send, one receives.

    If the process at the other end is given, the line ends when it dies, even if a fork of it still holds the socket.
    ``values`` says how that process sends its agent's values.
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
        """Wait for a message; None if the other end is gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        length = _HEADER.unpack(header)[0]
        packed = self._exactly(length) if length <= LIMIT else None
        if packed is None:
            return None
        if self._process is None:
            message: Message = pickle.loads(packed)  # noqa: S301 - from the process that started this one
            return message
        return _opened(checked(packed), self.values)

    def hang_up(self) -> None:
        """Shut down the connection, which ends all waits to send or receive, on both sides."""
        with contextlib.suppress(OSError):  # the other end has closed it
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; no other thread may be using it."""
        self._connection.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _exactly(self, count: int) -> bytes | None:
        buffer = bytearray()
        while len(buffer) < count:
            try:
                self._wait()
                # Without waiting: if the process died, there may be no data.
                chunk = self._connection.recv(min(count - len(buffer), 1 << 20), socket.MSG_DONTWAIT)
            except OSError:
                return None
            if not chunk:
                return None
            buffer += chunk
        return bytes(buffer)

    def _wait(self) -> None:
        """Wait until there is data, or the process at the other end has died."""
        look_every = _LOOK_MS if self._process is not None and self._pidfd is None else None
        while not (ready := self._poll.poll(look_every)):
            if self._process is not None and self._process.poll() is not None:
                return
        if any(descriptor == self._pidfd for descriptor, _ in ready):
            # On Linux, which has pidfds, data that the process sent can still be read; its forks can no longer send.
            self._connection.shutdown(socket.SHUT_RD)


class Sender:
    """Sends messages in order on a separate thread, so that a process that does not read blocks only that thread."""

    def __init__(self, line: Line, first: bytes) -> None:
        self._line = line
        self._first = first
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()  # re-entrant, for signal handlers
        self._thread = threading.Thread(target=self._send_all, name="stoppable-tell", daemon=True)

    def put(self, message: Message) -> None:
        """Queue a message; returns at once, from any thread and from a signal handler."""
        self._waiting.put(message)

    def start(self) -> None:
        """Start the sending thread."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End the thread and drop the remaining messages; call ``Line.hang_up`` first, which ends a blocked send."""
        self._waiting.put(None)
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _send_all(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            self._line.send_packed(self._first)
            while (message := self._waiting.get()) is not None:
                try:
                    self._line.send(message)
                except InvalidArgument:
                    _logger.exception("a stop could not be sent to an agent process")


def pack(message: Message, values: Values = Values.PICKLE) -> bytes:
    """Return the bytes of a message, or raise an error that says what cannot be sent."""
    what = type(message).__name__
    try:
        packed = pickle.dumps(_sealed(message, values), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise refused(what, error) from error
    if len(packed) > LIMIT:
        raise InvalidArgument(
            f"cannot send {what} of {len(packed):,} bytes to or from an agent process: the limit is {LIMIT:,}. "
            "Pass the name of a file instead"
        )
    return packed


# The fields that hold the agent's values. In transit they are bytes, contrary to their declared types.
_VALUES: dict[type, str] = {Told: "value", Item: "value", Progress: "data"}


def _sealed(message: Any, values: Values) -> Message:
    """Return a message whose agent values are encoded as bytes."""
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
    """Return a message whose agent values are decoded."""
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
