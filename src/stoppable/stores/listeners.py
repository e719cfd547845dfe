"""Callbacks for changes of runs and workers, within one process."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection

_logger = logging.getLogger("stoppable")

ANY = ""
"""A name that stands for every other name."""


class Listeners:
    """Internal callbacks by name; called outside every lock, on the thread that made the change."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[_Listener]] = {}

    def add(self, name: str, call: Callable[[], object]) -> _Listener:
        """Call a function on changes of a name, until it is closed."""
        listener = _Listener(self, name, call)
        with self._lock:
            self._calls.setdefault(name, []).append(listener)
        return listener

    def __bool__(self) -> bool:
        return bool(self._calls)

    def names(self) -> list[str]:
        """Return the names with listeners."""
        with self._lock:
            return list(self._calls)

    def tell(self, names: Collection[str]) -> None:
        """Call the listeners of these names."""
        if self._calls:
            with self._lock:
                found = [listener for name in names for listener in self._calls.get(name, ())]
                if ANY in self._calls and names and ANY not in names:
                    found += self._calls[ANY]
            for listener in found:
                try:
                    listener.call()
                except Exception:  # it may wake a closed loop; the write stands, and the other listeners must be called
                    _logger.exception("a listener to %s failed", listener.name)

    def _remove(self, listener: _Listener) -> None:
        with self._lock, contextlib.suppress(KeyError, ValueError):
            listeners = self._calls[listener.name]
            listeners.remove(listener)
            if not listeners:
                del self._calls[listener.name]


class _Listener:
    __slots__ = ("_listeners", "call", "name")

    def __init__(self, listeners: Listeners, name: str, call: Callable[[], object]) -> None:
        self._listeners = listeners
        self.name: str = name
        self.call: Callable[[], object] = call

    def close(self) -> None:
        """Stop being called."""
        self._listeners._remove(self)
