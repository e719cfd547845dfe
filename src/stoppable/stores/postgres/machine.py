"""What this machine knows of its own workers: the directory with their locks, and which start of it this is."""

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
from stoppable.stores.sql.locks import Locks, file_name
from stoppable.stores.sql.private import make_directory


class Machine:
    """The locks of the workers of this machine in one directory, which has an id of its own.

    The id of the directory and the name of the host are both part of the machine's: containers that were made from one
    image, or that share a volume, must not pass for each other.
    """

    def __init__(self, directory: Path) -> None:
        self.locks: Locks = Locks(directory)
        self.id: str = hashlib.sha256(f"{_id_of(directory)} {socket.gethostname()}".encode()).hexdigest()[:32]
        self.boot: str = boot_id()

    def proves_death(self, worker: str, machine: str, boot: str) -> bool:
        """Return whether a worker is certainly dead, and its children too."""
        if machine != self.id:
            return False
        return (bool(boot) and bool(self.boot) and boot != self.boot) or self.locks.is_free(worker)

    def sweep(self, workers: Iterable[str]) -> None:
        """Remove the files of workers that are dead."""
        self.locks.sweep([file_name(worker) for worker in workers])


def default_directory() -> Path:
    """Return where the locks are unless the URL says so."""
    return Path(tempfile.gettempdir()) / f"stoppable-{os.geteuid()}-workers"


def _id_of(directory: Path) -> str:
    path = directory / "machine"
    try:
        make_directory(directory)
        with contextlib.suppress(FileExistsError):
            temporary = directory / f"machine.{new_id()}"
            temporary.write_text(new_id())
            try:
                os.link(temporary, path)  # whole, or not at all
            finally:
                temporary.unlink()
        return path.read_text()
    except OSError as error:
        raise StoreError(
            f"{directory}: the workers of this machine need a directory for their locks: {error};"
            " give another one with ?locks=/path in the URL of the store"
        ) from error
