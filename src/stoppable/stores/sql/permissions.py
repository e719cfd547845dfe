"""Creates files that only one user may read: results, partials and reasons are stored in plain text."""

from __future__ import annotations

import os
import stat
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
        found = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"{path} is a link or a file: remove it, so that stoppable can make a directory")
    if found.st_uid not in {os.geteuid(), path.parent.stat().st_uid, _beside(path)}:
        raise StoreError(f"{path} belongs to user {found.st_uid}: remove it, or run as the user of the store")
    return True


def _beside(path: Path) -> int:
    """Return the id of the user who owns the file of the store."""
    try:
        return path.with_name(path.name.removesuffix("-workers")).stat().st_uid
    except OSError:
        return os.geteuid()
