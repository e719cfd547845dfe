"""The secrets of a server, and how agents are kept from inheriting them.

Processes of a run inherit the environment of the server. With the API key, an agent's shell could stop other runs and
release its own hold; with the credentials of the store it could do the same without a server. So they are read once and
then removed from the environment.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from stoppable.errors import InvalidArgument

KEY = "STOPPABLE_API_KEY"
STORE = "STOPPABLE_STORE"
_OURS = frozenset({KEY, f"{KEY}_FILE", STORE, f"{STORE}_FILE"})
_POSTGRES = frozenset({"PGPASSWORD", "PGPASSFILE"})

_keys: list[str] = []
_removed: list[dict[str, str]] = []
_passwords: set[str] = set()


def api_key() -> str | None:
    """Return the key: from the environment, a file, a systemd credential, or what ``hide`` removed."""
    return _find(KEY, "stoppable-api-key", "the API key") or (_keys[-1] if _keys else None)


def store_url() -> str | None:
    """Return the URL of the store: from the environment, a file, or a systemd credential."""
    return _find(STORE, "stoppable-store", "the URL of the store")


def variable(name: str) -> str | None:
    """Return an environment variable, even if ``hide`` removed it."""
    return os.environ.get(name) or next((names[name] for names in reversed(_removed) if name in names), None)


def protect(store: str) -> None:
    """Remember the password of a store, so that no process of a run inherits a variable that contains it."""
    with contextlib.suppress(ValueError):  # the store says what is wrong with its URL
        password = _password(store)
        if password:
            _passwords.update({password, quote(password, safe="")})


def _password(store: str) -> str | None:
    parts = urlsplit(store)
    if parts.password is not None:
        return unquote(parts.password)
    return variable("PGPASSWORD") if _is_postgres(store) else None


def _is_postgres(store: str) -> bool:
    return urlsplit(store).scheme in {"postgresql", "postgres"}


def is_secret(name: str, value: str) -> bool:
    """Return whether no process of a run may inherit a variable."""
    if name in _OURS:
        return True
    for password in _passwords:
        # A short password may be part of other values, so these are not just searched for it.
        if f":{password}@" in value or f"password={password}" in value or ("PASS" in name and value == password):
            return True
    return False


def inheritable() -> dict[str, str]:
    """Return the environment of this process without secrets."""
    return {name: value for name, value in os.environ.items() if not is_secret(name, value)}


@contextlib.contextmanager
def hide(store: object = None) -> Iterator[str | None]:
    """Yield the key, and remove it and the credentials of a store from the environment for the block.

    ``/proc`` never shows them again. ``api_key`` and ``variable`` still return them, for a client or a second server in
    this process, and for a store that connects again.
    """
    key = api_key()
    also: frozenset[str] = frozenset()
    if isinstance(store, str):
        protect(store)
        also = _POSTGRES if _is_postgres(store) else also
    if key is not None:
        _keys.append(key)
    removed = {name: value for name, value in os.environ.items() if name in also or is_secret(name, value)}
    _blot_out(removed)
    for name in removed:
        del os.environ[name]
    _removed.append(removed)
    try:
        yield key
    finally:
        _removed.remove(removed)
        os.environ.update(removed)
        if key is not None:
            _keys.remove(key)


def _find(name: str, credential: str, what: str) -> str | None:
    """Return a secret from a variable, the file that ``…_FILE`` names, or systemd's LoadCredential=credential:/path."""
    value = os.environ.get(name)
    if value:
        return value
    file = os.environ.get(f"{name}_FILE")
    if file:
        return _read(Path(file), what)
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if directory and (path := Path(directory, credential)).is_file():
        return _read(path, what)
    return None


def _read(path: Path, what: str) -> str:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the file with {what} cannot be read: {path}: {error}") from None
    if not text:
        raise InvalidArgument(f"the file with {what} is empty: {path}")
    return text


def _blot_out(names: dict[str, str]) -> None:
    """Overwrite the values where the system put them when this process began.

    Unsetting a variable leaves its text in memory, where ``/proc/PID/environ`` shows it to all processes of the user;
    Python only has a copy of it.
    """
    if not names:
        return
    import ctypes  # noqa: PLC0415 - only servers need it

    prefixes = tuple(os.fsencode(name) + b"=" for name in names)
    with contextlib.suppress(ValueError, AttributeError, OSError):  # a system without the symbol
        entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
        index = 0
        while entries and (address := entries[index]):
            text = ctypes.string_at(address)
            if text.startswith(prefixes):
                begin = text.index(b"=") + 1
                ctypes.memset(address + begin, ord("x"), len(text) - begin)
            index += 1
