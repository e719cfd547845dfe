"""Wakes the process of a worker that has new stops, by a datagram that brings them.

A datagram may be lost: the stops are in the file, and every heartbeat reads them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stoppable.errors import StoreError
from stoppable.stores.base import Intent
from stoppable.stores.sql import rows
from stoppable.stores.sql.rows import Row
from stoppable.stores.sql.worker_locks import file_name

_MOST = 1000  # datagrams that one wake-up answers
_LONGEST = 100  # the system takes paths of 107 bytes on Linux, of 103 elsewhere
_PAYLOAD = 2000  # bytes of a datagram: macOS takes 2048
_FEW = 50  # stops that may fit into one
_LOOK = b"!"  # a datagram without stops: the file has them


class Wakeups:
    """Listens for the workers of this process on one thread, and wakes those of other processes."""

    def __init__(self, directory: Path, on_wake: Callable[[str, Sequence[Intent] | None], object]) -> None:
        """``on_wake`` gets a worker and its new stops; None if the file must be read."""
        self._directory = directory
        self._on_wake = on_wake
        self._turn = threading.Lock()  # the writer's thread listens; another one closes, perhaps while that is stuck
        self._is_closed = False
        self._sockets: dict[str, socket.socket] = {}
        self._address = functools.lru_cache(1024)(self._address_of)
        try:
            self._selector = selectors.DefaultSelector()
            self._sender = _datagrams()
            self._end, self._is_ended = socket.socketpair()
        except OSError as error:
            raise StoreError(f"{directory}: cannot create the socket that wakes workers: {error}") from error
        self._selector.register(self._is_ended, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._listen, name="stoppable-sqlite-wakeups", daemon=True)

    def listen(self, worker: str) -> None:
        """Listen for a worker of this process; without sockets, the store is polled instead."""
        with self._turn:
            if worker not in self._sockets and not self._is_closed:
                self._open(worker)

    def _open(self, worker: str) -> None:
        inbox = _datagrams()
        path = self._path(worker)
        try:
            path.unlink(missing_ok=True)
            with _short(path) as address:
                inbox.bind(address)
        except OSError:  # a filesystem without sockets
            inbox.close()
            return
        self._sockets[worker] = inbox
        self._selector.register(inbox, selectors.EVENT_READ, worker)
        if not self._thread.is_alive():
            self._thread.start()

    def unlisten(self, worker: str) -> None:
        """Stop listening for a worker."""
        with self._turn:
            self._close(worker)

    def _close(self, worker: str) -> None:
        inbox = self._sockets.pop(worker, None)
        if inbox is not None:
            self._selector.unregister(inbox)
            inbox.close()
            self._path(worker).unlink(missing_ok=True)

    def wake(self, stops: Mapping[str, Sequence[Row]]) -> None:
        """Wake the processes of workers, and send them their new stops."""
        for worker, pending in stops.items():
            datagram = _datagram(pending)
            try:
                address = self._address(worker)
                if address is not None:
                    self._sender.sendto(datagram, address)
                else:
                    with _short(self._path(worker)) as way:
                        self._sender.sendto(datagram, way)
            except OSError:
                pass  # it is gone, or has so many datagrams that it will look anyway

    def _address_of(self, worker: str) -> str | None:
        path = self._path(worker)
        return str(path) if len(os.fsencode(path)) <= _LONGEST else None

    def _path(self, worker: str) -> Path:
        return self._directory / f"{file_name(worker)}.sock"

    def close(self) -> None:
        """Stop listening, for good: a call that waited for the file may still come."""
        with self._turn:
            self._is_closed = True
            for worker in list(self._sockets):
                self._close(worker)
        self._end.send(b"!")
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        for each in (self._end, self._is_ended, self._sender):
            each.close()

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                inbox = key.fileobj
                assert isinstance(inbox, socket.socket), "nothing else is registered"
                # Before the rest is read: a stop must not wait for it.
                self._on_wake(key.data, _intents(_receive(inbox)))
                if _drain(inbox):
                    self._on_wake(key.data, None)


def _receive(inbox: socket.socket) -> bytes:
    """Return the next datagram, or nothing if there is none, or the socket was closed."""
    with contextlib.suppress(OSError):
        return inbox.recv(_PAYLOAD)
    return b""


def _drain(inbox: socket.socket) -> bool:
    """Read the datagrams that have come meanwhile, and return whether there were any."""
    has_more = False
    for _ in range(_MOST):
        if not _receive(inbox):
            break
        has_more = True
    return has_more


def _datagram(stops: Sequence[Row]) -> bytes:
    """Return what is sent to the worker of these stops."""
    if 0 < len(stops) <= _FEW:
        datagram = rows.encode(stops).encode()
        if len(datagram) <= _PAYLOAD:
            return datagram
    return _LOOK


def _intents(datagram: bytes) -> Sequence[Intent] | None:
    """Return the stops in a datagram; None if it has none, so that the file must be read."""
    return rows.intents(rows.decode(datagram)) if datagram.startswith(b"[") else None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield the address of a socket, through its open directory if the path is too long."""
    if len(os.fsencode(path)) <= _LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _datagrams() -> socket.socket:
    created = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    created.settimeout(0)
    return created
