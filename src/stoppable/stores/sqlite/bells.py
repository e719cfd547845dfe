"""A datagram wakes the process of a worker that has something to stop. It may be lost: the intent is in the file."""

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
from stoppable.stores.sqlite.locks import file_name

_MOST = 1000  # rings that are answered by one look
_LONGEST = 100  # the system takes 107 bytes on Linux, 103 elsewhere


class Bells:
    """The bells of our own workers, answered on one thread, and the way to ring those of others."""

    def __init__(self, directory: Path, rung: Callable[[str], object]) -> None:
        self._directory = directory
        self._rung = rung
        self._bells: dict[str, socket.socket] = {}
        self._address = functools.lru_cache(1024)(self._address_of)
        try:
            self._selector = selectors.DefaultSelector()
            self._sender = _datagrams()
            self._end, self._is_ended = socket.socketpair()
        except OSError as error:
            raise StoreError(f"{directory}: no socket could be made to wake workers with: {error}") from error
        self._selector.register(self._is_ended, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._listen, name="stoppable-sqlite-bells", daemon=True)

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that answers them."""
        return threading.get_ident() == self._thread.ident

    def hang(self, worker: str) -> None:
        """Answer the bell of a worker of this process from now on; without one the poll has to do."""
        if worker in self._bells:
            return
        bell = _datagrams()
        path = self._path(worker)
        try:
            path.unlink(missing_ok=True)
            with _short(path) as address:
                bell.bind(address)
        except OSError:  # a filesystem without sockets
            bell.close()
            return
        self._bells[worker] = bell
        self._selector.register(bell, selectors.EVENT_READ, worker)
        if not self._thread.is_alive():
            self._thread.start()

    def take_down(self, worker: str) -> None:
        """Answer a bell no longer."""
        bell = self._bells.pop(worker, None)
        if bell is not None:
            self._selector.unregister(bell)
            bell.close()
            self._path(worker).unlink(missing_ok=True)

    def ring(self, workers: Iterable[str]) -> None:
        """Wake the processes of workers, those that are there."""
        for worker in workers:
            try:
                address = self._address(worker)
                if address is not None:
                    self._sender.sendto(b"!", address)
                else:
                    with _short(self._path(worker)) as way:
                        self._sender.sendto(b"!", way)
            except OSError:
                pass  # it is gone, or hears so much that it will look anyway

    def _address_of(self, worker: str) -> str | None:
        path = self._path(worker)
        return str(path) if len(os.fsencode(path)) <= _LONGEST else None

    def _path(self, worker: str) -> Path:
        return self._directory / f"{file_name(worker)}.sock"

    def close(self) -> None:
        """Take all down."""
        for worker in list(self._bells):
            self.take_down(worker)
        self._end.send(b"!")
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        for one in (self._end, self._is_ended, self._sender):
            one.close()

    def _listen(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                bell = key.fileobj
                assert isinstance(bell, socket.socket), "nothing else is registered"
                _heard(bell, 1)
                self._rung(key.data)  # first: a stop does not wait until we know that there is no other one
                if _heard(bell, _MOST):
                    self._rung(key.data)


def _heard(bell: socket.socket, most: int) -> bool:
    """Take what came, up to so many, and return whether it was anything."""
    heard = 0
    with contextlib.suppress(OSError):  # there is no more, or it was taken down
        while heard < most and bell.recv(16):
            heard += 1
    return heard > 0


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Give an address for a socket, by way of its open directory where its path is too long for one."""
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
