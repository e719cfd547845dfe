"""The messages between a run and its agent process, each preceded by its length, and how values are encoded in them.

Messages are pickled. Those from an agent process are not trusted: only messages and their parts are unpickled. The
agent's values in them (a result, an item, a partial, an error) are bytes, which ``Values`` decodes.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
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
from dataclasses import dataclass, is_dataclass, replace
from enum import Enum, StrEnum
from typing import Any, TypeAlias

from stoppable._core.run import Left as LeftOfLimit
from stoppable._core.stop import Abandoned
from stoppable._core.values import Fate, Mode, Outcome, Policy, Reason
from stoppable._engine.processes.table import open_pidfd
from stoppable._engine.source_lines import trace_of
from stoppable._json import name_of, plain
from stoppable.errors import InvalidArgument

LIMIT = 64 * 1024 * 1024
_MODULES = {"stoppable._engine.isolation.messages", "stoppable._core.values"}
_IN_THE_PROCESS = "in the agent process:\n"


class Values(StrEnum):
    """How results, items, partials, event data and errors are transferred."""

    PICKLE = "pickle"
    """Unchanged; unpickling them may execute code of the agent."""
    JSON = "json"
    """As JSON; an error becomes one with the same name."""

    def dump(self, value: object) -> bytes:
        """Encode a value."""
        if self is Values.PICKLE:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if isinstance(value, BaseException):
            form: Any = {"type": name_of(value), "message": text_of(value), "trace": trace_of(value)}
        else:
            form, omitted = plain(value, LIMIT // 2)
            form = form if omitted is None else {"omitted": omitted}
        return json.dumps(form).encode()

    def load(self, payload: bytes) -> Any:
        """Decode a value."""
        if self is Values.PICKLE:
            return pickle.loads(payload)  # noqa: S301 - the caller has chosen to trust it
        return json.loads(payload)

    def load_error(self, payload: bytes) -> BaseException | None:
        """Decode an error."""
        decoded = self.load(payload)
        if self is Values.PICKLE or decoded is None:
            return decoded  # type: ignore[no-any-return]
        error = _class_named(str(decoded["type"]))(str(decoded["message"]))
        error.add_note(_IN_THE_PROCESS + str(decoded["trace"]))
        return error


def _class_named(name: str) -> type[Exception]:
    """Return the built-in exception with a name if it takes a text, otherwise a new class with that name.

    Never a class of the agent: creating it would execute the agent's code here.
    """
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type) and issubclass(builtin, Exception) and builtin.__str__ is BaseException.__str__:
        return builtin
    return type(name, (RuntimeError,), {})


def sendable_error(error: BaseException) -> BaseException:
    """Return a copy of an error with its traceback as text; the original is still propagating here."""
    trace = trace_of(error)
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled on the same line
        copy.add_note(_IN_THE_PROCESS + trace)
    except Exception:  # it cannot be pickled: its __init__ takes other arguments than it passes on, or it holds a lock
        copy = RuntimeError(f"{type(error).__name__}: {text_of(error)}")
        copy.add_note(_IN_THE_PROCESS + trace)
    return copy


def text_of(error: BaseException) -> str:
    """Return the text of an error, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "it cannot be shown"


class _CheckedUnpickler(pickle.Unpickler):
    """Unpickles only messages and their parts, because other classes could execute code."""

    def find_class(self, module: str, name: str) -> Any:
        if module in _MODULES and "." not in name:
            part = super().find_class(module, name)
            if isinstance(part, type) and (is_dataclass(part) or issubclass(part, (Enum, tuple))):
                return part
        raise pickle.UnpicklingError(f"an agent process sent {module}.{name}, which is not part of a message")


def load_message(payload: bytes) -> Any:
    """Decode a message from an agent process."""
    return _CheckedUnpickler(io.BytesIO(payload)).load()


def sending_error(what: str, error: Exception) -> InvalidArgument:
    """Return the error for a value that cannot be sent."""
    return InvalidArgument(
        f"cannot send {what} to or from an agent process: {error}. Arguments, results, items, partials and events of "
        "an agent with isolation='process' must be picklable"
    )


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
class StopMessage:
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
class ChildStarted:
    """From the child: one of its runs has started a child run."""

    run_id: str
    parent_id: str
    name: str
    owner: str | None
    labels: Mapping[str, str]
    policy: Policy
    has_begun: bool


@dataclass(frozen=True, slots=True)
class StopReported:
    """From the child: one of its runs was stopped there."""

    run_id: str
    mode: Mode
    reason: Reason
    grace: float | None


@dataclass(frozen=True, slots=True)
class BoundaryEntered:
    """From the child: a boundary was entered."""

    run_id: str
    key: int
    kind: str
    name: str | None
    after_stop: bool


@dataclass(frozen=True, slots=True)
class BoundaryLeft:
    """From the child: a boundary was left."""

    key: int
    fate: Fate | None


@dataclass(frozen=True, slots=True)
class LimitSpent:
    """From the child: a boundary was refused because a limit is used up; the parent counts it too."""

    run_id: str
    kind: str


@dataclass(frozen=True, slots=True)
class PartialReported:
    """From the child: the partial of one of its runs."""

    run_id: str
    value: object
    appended: bool


@dataclass(frozen=True, slots=True)
class ModelTextReported:
    """From the child: what models have said so far in one of its runs that is being stopped."""

    run_id: str
    text: object


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """From the child: progress."""

    run_id: str
    kind: str
    data: dict[str, object]


@dataclass(frozen=True, slots=True)
class MetadataReported:
    """From the child: facts about one of its runs."""

    run_id: str
    metadata: dict[str, object]


@dataclass(frozen=True, slots=True)
class Item:
    """From the child: an item of a generator."""

    value: object


@dataclass(frozen=True, slots=True)
class RunEndReported:
    """From the child: how one of its runs ended, and what could not be ended."""

    run_id: str
    outcome: Outcome[Any]
    delivered: bool
    abandoned: tuple[Abandoned, ...] = ()
    library_threads: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()


Message: TypeAlias = (
    StartAgent
    | StopMessage
    | Acknowledged
    | ChildStarted
    | StopReported
    | BoundaryEntered
    | BoundaryLeft
    | LimitSpent
    | PartialReported
    | ModelTextReported
    | ProgressReported
    | MetadataReported
    | Item
    | RunEndReported
)


class MessageSocket:
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

    def send_packed(self, payload: bytes) -> None:
        """Send a message that was packed before."""
        with self._sending:
            self._connection.sendall(_HEADER.pack(len(payload)) + payload)

    def receive(self) -> Message | None:
        """Wait for a message; None if the other end is gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        length = _HEADER.unpack(header)[0]
        payload = self._exactly(length) if length <= LIMIT else None
        if payload is None:
            return None
        if self._process is None:
            message: Message = pickle.loads(payload)  # noqa: S301 - from the process that started this one
            return message
        return _decode_values(load_message(payload), self.values)

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

    def __init__(self, line: MessageSocket, first: bytes) -> None:
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
        payload = pickle.dumps(_encode_values(message, values), pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise sending_error(what, error) from error
    if len(payload) > LIMIT:
        raise InvalidArgument(
            f"cannot send {what} of {len(payload):,} bytes to or from an agent process: the limit is {LIMIT:,}. "
            "Pass the name of a file instead"
        )
    return payload


# The fields that hold the agent's values. In transit they are bytes, contrary to their declared types.
_VALUES: dict[type, str] = {PartialReported: "value", Item: "value", ProgressReported: "data"}


def _encode_values(message: Any, values: Values) -> Message:
    """Return a message whose agent values are encoded as bytes."""
    name = _VALUES.get(type(message))
    if name is not None:
        message = replace(message, **{name: values.dump(getattr(message, name))})
    elif isinstance(message, RunEndReported):
        outcome: Any = message.outcome
        result, partial, error = (values.dump(value) for value in (outcome.result, outcome.partial, outcome.error))
        message = replace(message, outcome=outcome._replace(result=result, partial=partial, error=error))
    encoded: Message = message
    return encoded


def _decode_values(message: Any, values: Values) -> Message:
    """Return a message whose agent values are decoded."""
    name = _VALUES.get(type(message))
    if name is not None:
        message = replace(message, **{name: values.load(getattr(message, name))})
    elif isinstance(message, RunEndReported):
        outcome: Any = message.outcome
        result, partial = values.load(outcome.result), values.load(outcome.partial)
        outcome = outcome._replace(result=result, partial=partial, error=values.load_error(outcome.error))
        message = replace(message, outcome=outcome)
    decoded: Message = message
    return decoded
