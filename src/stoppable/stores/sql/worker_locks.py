"""A locked file for each worker: while any process holds the lock, the worker or a child of it may be alive.

The descriptor is inheritable on purpose: a child that has it keeps the lock, so a free lock proves that the worker and
its children are dead. ``flock`` belongs to the open file, not to the process, so testing a lock opens the file again
and never releases the lock of another.

Files and directories are created for one user only: results, partials and reasons are stored in plain text.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from stoppable.errors import StoreError


def make_file(path: Path) -> None:
    """Create a file that only its user may read; an existing one keeps its permissions.

    SQLite gives the files beside it the same permissions.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return  # it exists, or opening it will say what is wrong


def make_directory(path: Path) -> None:
    """Create a directory that only its user may enter, or refuse one of another user.

    Another user could have put a link there, so that files are created or removed elsewhere.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        check_directory(path)


def check_directory(path: Path) -> bool:
    """Return whether the directory exists; refuse one of another user."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(state.st_mode):
        raise StoreError(f"{path} is a link or a file: remove it, so that stoppable can make a directory")
    if state.st_uid not in {os.geteuid(), path.parent.stat().st_uid, _beside(path)}:
        raise StoreError(f"{path} belongs to user {state.st_uid}: remove it, or run as the user of the store")
    return True


def _beside(path: Path) -> int:
    """Return the id of the user who owns the file of the store."""
    try:
        return path.with_name(path.name.removesuffix("-workers")).stat().st_uid
    except OSError:
        return os.geteuid()


_PLAIN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_descriptors: dict[Path, int] = {}  # of this process: they outlive a closed store, for the next one over the same file
_TRIES = 20  # every ten milliseconds: a test holds a lock for a few microseconds


def file_name(worker: str) -> str:
    """Return the name of a worker's files, which is safe for any id."""
    return worker if _PLAIN.fullmatch(worker) else hashlib.sha256(worker.encode(errors="replace")).hexdigest()[:32]


class WorkerLocks:
    """Locks the workers of one store, and tests the locks of other workers."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._workers: list[str] = []
        self._pause = threading.Event()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that child processes must inherit (``pass_fds``)."""
        return tuple(
            _descriptors[path] for worker in list(self._workers) if (path := self._path(worker)) in _descriptors
        )

    def take(self, worker: str) -> bool:
        """Lock the file of a worker of this process; False if it is locked already."""
        path = self._path(worker)
        is_new = path not in _descriptors
        if is_new:
            try:
                make_directory(self._directory)
                descriptor = self._take(path, worker)
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(f"{path}: cannot create the file of the worker: {error}") from error
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no name
            _descriptors[path] = descriptor
        if worker not in self._workers:
            self._workers.append(worker)
        return is_new

    def _take(self, path: Path, worker: str) -> int:
        for _ in range(_TRIES):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except BlockingIOError:
                self._pause.wait(0.01)
            except FileNotFoundError:  # a sweep removed it before it was locked
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)
        raise StoreError(f"{path} is locked: another process is the worker {worker!r}; give each a different id")

    def drop(self, worker: str) -> None:
        """Release the lock of a worker that was closed."""
        if worker in self._workers:
            self._workers.remove(worker)
        descriptor = _descriptors.pop(self._path(worker), None)
        if descriptor is not None:
            self._unlink(file_name(worker))
            os.close(descriptor)

    def is_free(self, worker: str) -> bool:
        """Return whether a worker is proven dead, and its children too; a file that is missing proves nothing."""
        return self._path(worker) not in _descriptors and self._if_free(file_name(worker), unlink=False)

    def names(self) -> list[str]:
        """Return the names of the lock files."""
        if not check_directory(self._directory):
            return []
        return [path.stem for path in self._directory.iterdir() if path.suffix == ".lock"]

    def sweep(self, names: Iterable[str]) -> None:
        """Remove the files of the workers among these that are dead."""
        for name in names:
            self._if_free(name, unlink=True)

    def _if_free(self, name: str, *, unlink: bool) -> bool:
        try:
            descriptor = os.open(self._directory / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if unlink:
                self._unlink(name)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def _unlink(self, name: str) -> None:
        for suffix in (".sock", ".lock"):
            (self._directory / f"{name}{suffix}").unlink(missing_ok=True)

    def _path(self, worker: str) -> Path:
        return self._directory / f"{file_name(worker)}.lock"
