"""Which connections a server keeps when there are too many: those that a request has come on."""

from __future__ import annotations

import logging
import resource
from typing import Protocol

from stoppable._core import clock

_logger = logging.getLogger("stoppable.server")

_MOST_FILES = 65_536  # what a run starts gets the same limit, and some programs do something for each of them
_SPARE_FILES = 128  # for the store, the agents and the loop
_LOG_SECONDS = 10.0
_BACKLOG = 512


class Connection(Protocol):
    """A connection that can be cut."""

    def cut(self) -> None:
        """Close it at once."""
        ...


class Connections:
    """The connections whose client owes us something: a request, or the rest of one.

    They are all that somebody without a key can hold, so they are what gives way: the one that has waited longest is
    cut for a new one when the server is full, or when its address holds more than its share. A Stop arrives in one
    piece and owes nothing a moment later, so no number of them locks it out.
    """

    def __init__(self, most: int, per_address: int) -> None:
        self.most = most
        self._per_address = per_address
        self._owing: dict[Connection, str] = {}
        self._by_address: dict[str, dict[Connection, None]] = {}
        self._cut = 0
        self._told_at = -_LOG_SECONDS

    def owes(self, connection: Connection, address: str) -> None:
        """Remember who owes us something, from now on."""
        self._owing[connection] = address
        self._by_address.setdefault(address, {})[connection] = None
        if len(self._by_address[address]) > self._per_address:
            self._cut_first(self._by_address[address], "one address has too many connections without a request")

    def paid(self, connection: Connection) -> None:
        """Forget it."""
        address = self._owing.pop(connection, None)
        if address is not None:
            same = self._by_address[address]
            del same[connection]
            if not same:
                del self._by_address[address]

    def make_room(self, count: int) -> bool:
        """Return whether one more than ``count`` connections may be used, if need be in place of one that waits."""
        return count < self.most or self._cut_first(self._owing, "the server has all the connections that it may have")

    def _cut_first(self, among: dict[Connection, None] | dict[Connection, str], why: str) -> bool:
        first = next(iter(among), None)
        if first is None:
            return False
        self.paid(first)
        first.cut()
        self._cut += 1
        now = clock.now()
        if now - self._told_at >= _LOG_SECONDS:  # a flood must not fill the log
            _logger.warning("%s: %d that waited longest were cut", why, self._cut)
            self._told_at, self._cut = now, 0
        return True


def open_file_limit() -> int:
    """Let this process open as many files as the system allows it, up to a bound, and return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return wanted


def affordable(wanted: int) -> tuple[int, int]:
    """Return how many of the wanted connections this process has files for, and how many it may accept in one go.

    Those are open before anybody can close one.
    """
    files = open_file_limit()
    backlog = max(16, min(_BACKLOG, files // 4))
    most = max(files - _SPARE_FILES - backlog, 16)
    if most < wanted:
        _logger.warning(
            "only %d connections instead of %d: this process may open %d files (ulimit -n)", most, wanted, files
        )
    return min(wanted, most), backlog
