"""Wakes the process of a worker that has a pending stop, by a datagram. It may be lost: the stop is in the file."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from stoppable.errors import StoreError
from stoppable.stores.sql.worker_locks import file_name

_MOST = 1000  # datagrams that one wake-up answers
_LONGEST = 100  # the system takes 107 bytes on Linux, 103 elsewhere


class Wakeups:
    """Listens for the workers of this process on one thread, and wakes those of other processes."""

    def __init__(self, directory: Path, woken: Callable[[str], object]) -> None:
        self._directory = directory
        self._woken = woken
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

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that listens."""
        return threading.get_ident() == self._thread.ident

    def listen(self, worker: str) -> None:
        """Listen for a worker of this process; without sockets, the store is polled instead."""
        if worker in self._sockets:
            return
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
        inbox = self._sockets.pop(worker, None)
        if inbox is not None:
            self._selector.unregister(inbox)
            inbox.close()
            self._path(worker).unlink(missing_ok=True)

    def wake(self, workers: Iterable[str]) -> None:
        """Wake the processes of workers."""
        for worker in workers:
            try:
                address = self._address(worker)
                if address is not None:
                    self._sender.sendto(b"!", address)
                else:
                    with _short(self._path(worker)) as way:
                        self._sender.sendto(b"!", way)
            except OSError:
                pass  # it is gone, or has so many datagrams that it will look anyway

    def _address_of(self, worker: str) -> str | None:
        path = self._path(worker)
        return str(path) if len(os.fsencode(path)) <= _LONGEST else None

    def _path(self, worker: str) -> Path:
        return self._directory / f"{file_name(worker)}.sock"

    def close(self) -> None:
        """Stop listening."""
        for worker in list(self._sockets):
            self.unlisten(worker)
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
                _heard(inbox, 1)
                self._woken(key.data)  # before the rest is read: a stop must not wait for it
                if _heard(inbox, _MOST):
                    self._woken(key.data)


def _heard(inbox: socket.socket, most: int) -> bool:
    """Read up to ``most`` datagrams, and return whether there were any."""
    heard = 0
    with contextlib.suppress(OSError):  # there are no more, or the socket was closed
        while heard < most and inbox.recv(16):
            heard += 1
    return heard > 0


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
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.settimeout(0)
    return made
