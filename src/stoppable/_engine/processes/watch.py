"""Follows processes that stoppable did not start: a pidfd reports their end, and each is signalled separately.

Groups and sessions are never signalled, because they may contain unrelated processes (G13). A child of a followed
process is found while its parent lives, or by the cookie that it bears.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from stoppable._engine.processes import table
from stoppable._engine.processes.waker import Waker

_logger = logging.getLogger("stoppable")

_POLL_SECONDS = 0.05

Look: TypeAlias = Callable[[], float | None]
"""A function that returns after how many seconds to call it again, or None if not at all."""


class Family(table.Members):
    """Processes that were added by pid, those with the cookie, and everything that they started."""

    __slots__ = ("_added", "_spared", "kills")

    def __init__(self, cookie: str, spared: tuple[str, ...] = ()) -> None:
        super().__init__(cookie)
        self._spared = spared  # prefixes of the names of programs that are left alone, unless they were added
        self._added: set[int] = set()
        self.kills: int = 0  # how often all processes were searched and killed

    def add(self, pid: int) -> bool:
        """Add a process; return False if there is none with that pid."""
        self._added.add(pid)
        with contextlib.suppress(OSError):
            self._known[pid] = table.started(pid)
            return True
        return False

    def find(self) -> list[int]:
        """Return the live processes; if there is none, ``is_gone`` says whether that is proven."""
        return self.pids()

    def _is_spared(self, pid: int, stat: table.Stat) -> bool:
        return bool(self._spared) and pid not in self._added and stat.name.startswith(self._spared)

    def strike(self, signum: signal.Signals) -> tuple[list[int], list[int]]:
        """Signal all live processes; return the pids of all, and of those that were signalled."""
        known = self.pids()  # including children that bear no cookie, which the death of a member makes orphans
        # TERM to the oldest first: a parent must not see the death of its child before it gets the signal itself. KILL
        # at once to each that is found: it may be about to fork its successor and end.
        found, struck = [], []
        for pid in known if signum is signal.SIGTERM else self.each():
            found.append(pid)
            if self.signal(pid, signum):
                struck.append(pid)
                if signum is signal.SIGTERM:
                    self.signal(pid, signal.SIGCONT)  # a suspended process would not handle TERM
        self.kills += signum is signal.SIGKILL
        return found, struck


class Watcher:
    """A thread that notices the end of processes, and calls functions as often as they ask for."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waker = Waker()
        self._new: deque[tuple[int, Callable[[], object]]] = deque()
        self._calls: deque[Look] = deque()
        self._due: dict[Look, float] = {}

    def watch(self, pid: int, ended: Callable[[], object]) -> None:
        """Call a function on the watcher's thread once a process has ended; at once if there is no such process."""
        pidfd = table.open_pidfd(pid)
        if pidfd is None:
            self.call(functools.partial(_poll, pid, _started(pid), ended))
            return
        self._new.append((pidfd, ended))
        self._wake()

    def call(self, look: Look) -> None:
        """Call a function soon, and then as often as it asks for; from any thread."""
        self._calls.append(look)
        self._wake()

    def _wake(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._waker.open()
                    thread = threading.Thread(target=self._work, name="stoppable-watch", daemon=True)
                    thread.start()
                    self._thread = thread
        self._waker.wake()

    def _work(self) -> None:
        selector = selectors.DefaultSelector()
        self._waker.register_in(selector)
        while True:
            while self._new:
                pidfd, ended = self._new.popleft()
                selector.register(pidfd, selectors.EVENT_READ, functools.partial(_notice, selector, pidfd, ended))
            for key, _ in selector.select(self._patience()):
                _guarded(key.data)
            self._call_due()

    def _patience(self) -> float | None:
        if self._new or self._calls:
            return 0.0
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _call_due(self) -> None:
        now = time.monotonic()
        due = [look for look, when in self._due.items() if when <= now]
        while self._calls:
            due.append(self._calls.popleft())
        for look in dict.fromkeys(due):
            self._due.pop(look, None)
            seconds = _guarded(look)
            if seconds is not None:
                self._due[look] = now + seconds

    def forget(self) -> None:
        """Start over after a fork, which no thread survives."""
        self._begin()


def _notice(selector: selectors.BaseSelector, pidfd: int, ended: Callable[[], object]) -> None:
    selector.unregister(pidfd)
    os.close(pidfd)
    ended()


def _guarded(call: Callable[[], float | None]) -> float | None:
    try:
        return call()
    except Exception:  # the thread must survive any error: it follows the other processes too
        _logger.exception("handling the end of a process failed")
        return None


def _started(pid: int) -> bytes | None:
    try:
        return table.started(pid)
    except OSError:
        return None


def _poll(pid: int, since: bytes | None, ended: Callable[[], object]) -> float | None:
    """Check whether a process has ended, where there is no pidfd."""
    if since is not None and table.is_running(pid, since):
        return _POLL_SECONDS
    ended()
    return None


watcher = Watcher()
os.register_at_fork(after_in_child=watcher.forget)
