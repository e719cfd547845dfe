"""The files of a store belong to one user: results, partials and reasons are in them in plain text."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stoppable.errors import StoreError


def make_file(path: Path) -> None:
    """Make the file of a store that only its user may read; one that is there keeps its permissions.

    SQLite gives the files beside it the same ones.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return  # it is there, or whoever opens it says what is wrong


def make_directory(path: Path) -> None:
    """Make a directory that only its user may enter, or refuse one that is not ours.

    Somebody who may write beside the file could have put a link there, to have files made or removed elsewhere.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        check_directory(path)


def check_directory(path: Path) -> bool:
    """Return whether the directory is there; refuse one that somebody else put there."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{path} is a link or a file: remove it, so that stoppable can make a directory")
    if found.st_uid not in {os.geteuid(), path.parent.stat().st_uid, _beside(path)}:
        raise StoreError(f"{path} belongs to user {found.st_uid}: remove it, or run as the user of the store")
    return True


def _beside(path: Path) -> int:
    """Return whose the file of the store is."""
    try:
        return path.with_name(path.name.removesuffix("-workers")).stat().st_uid
    except OSError:
        return os.geteuid()
