"""Proves that a worker of this machine is dead: by its lock, or because the machine was rebooted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from stoppable._core.ids import new_id
from stoppable._engine.boot import boot_id
from stoppable.errors import StoreError
from stoppable.stores.sql.permissions import make_directory
from stoppable.stores.sql.worker_locks import WorkerLocks, file_name


class Machine:
    """The machine of this process: its id, its current boot, and the locks of its workers in one directory.

    The id is made of the directory's id and the host name: containers of one image, or with one volume, must differ.
    """

    def __init__(self, directory: Path) -> None:
        self.locks: WorkerLocks = WorkerLocks(directory)
        self.id: str = hashlib.sha256(f"{_id_of(directory)} {socket.gethostname()}".encode()).hexdigest()[:32]
        self.boot: str = boot_id()

    def proves_death(self, worker: str, machine: str, boot: str) -> bool:
        """Return whether a worker and its children are certainly dead."""
        if machine != self.id:
            return False
        return (bool(boot) and bool(self.boot) and boot != self.boot) or self.locks.is_free(worker)

    def sweep(self, workers: Iterable[str]) -> None:
        """Remove the files of workers that are dead."""
        self.locks.sweep([file_name(worker) for worker in workers])


def default_directory() -> Path:
    """Return the directory of the locks, if the URL names none."""
    return Path(tempfile.gettempdir()) / f"stoppable-{os.geteuid()}-workers"


def _id_of(directory: Path) -> str:
    path = directory / "machine"
    try:
        make_directory(directory)
        with contextlib.suppress(FileExistsError):
            temporary = directory / f"machine.{new_id()}"
            temporary.write_text(new_id())
            try:
                os.link(temporary, path)  # atomically
            finally:
                temporary.unlink()
        return path.read_text()
    except OSError as error:
        raise StoreError(
            f"{directory}: the workers of this machine need a directory for their locks: {error};"
            " give another one with ?locks=/path in the URL of the store"
        ) from error
