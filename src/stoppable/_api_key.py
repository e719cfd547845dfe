"""The API key of a server, and how agents are kept from inheriting it.

Processes of a run inherit the environment of the server. With the key, an agent's shell could stop other runs and
release its own hold, so the key is read once and then removed from the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from stoppable.errors import InvalidArgument

NAME = "STOPPABLE_API_KEY"
FILE = "STOPPABLE_API_KEY_FILE"
SECRET = frozenset({NAME, FILE})
"""The environment variables that no process of a run inherits."""

_CREDENTIAL = "stoppable-api-key"  # as in systemd's LoadCredential=stoppable-api-key:/path

_taken: list[str] = []


def find() -> str | None:
    """Return the key: from the environment, the file it names, a systemd credential, or what ``taken`` removed."""
    key = os.environ.get(NAME)
    if key:
        return key
    file = os.environ.get(FILE)
    if file:
        return _read(Path(file))
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if directory and (path := Path(directory, _CREDENTIAL)).is_file():
        return _read(path)
    return _taken[-1] if _taken else None


@contextlib.contextmanager
def taken() -> Iterator[str | None]:
    """Yield the key, and remove it from the environment for the block; ``/proc`` never shows it again.

    ``find`` still returns it, for a client or a second server in this process.
    """
    key = find()
    if key is not None:
        _taken.append(key)
    for name in SECRET:
        _blot_out(name)
    removed = {name: value for name in SECRET if (value := os.environ.pop(name, None)) is not None}
    try:
        yield key
    finally:
        os.environ.update(removed)
        if key is not None:
            _taken.remove(key)


def _read(path: Path) -> str:
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the file with the API key cannot be read: {path}: {error}") from None
    if not key:
        raise InvalidArgument(f"the file with the API key is empty: {path}")
    return key


def _blot_out(name: str) -> None:
    """Overwrite the value where the system put it when this process began.

    Unsetting a variable leaves its text in memory, where ``/proc/PID/environ`` shows it to all processes of the user;
    Python only has a copy of it.
    """
    import ctypes  # noqa: PLC0415 - only servers need it

    with contextlib.suppress(ValueError, AttributeError, OSError):  # a system without the symbol
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        prefix = os.fsencode(name) + b"="
        index = 0
        while entries and (address := entries[index]):
            text = ctypes.string_at(address)
            if text.startswith(prefix):
                ctypes.memset(address + len(prefix), ord("x"), len(text) - len(prefix))
            index += 1
