"""The newest runs: a server pushes changes, a store is read again and again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stoppable.records import RunSummary

if TYPE_CHECKING:
    from stoppable.cli.direct import StoreClient
    from stoppable.client import Change
    from stoppable.client.blocking_calls import BlockingCalls

_TRY_AGAIN_SECONDS = 1.0


class PolledRuns:
    """The newest runs of a store, read again each time."""

    def __init__(self, client: StoreClient, limit: int) -> None:
        self._client, self._limit = client, limit

    def newest(self) -> Sequence[RunSummary]:
        """Return them as they are now."""
        return self._client.list(limit=self._limit).runs

    def wait(self, seconds: float) -> None:
        """Wait before the next read."""
        threading.Event().wait(seconds)


class PushedRuns:
    """The newest runs of a server, which reports each change."""

    def __init__(self, client: BlockingCalls, limit: int) -> None:
        self._client, self._limit = client, limit
        self._runs: dict[str, RunSummary] = {run.id: run for run in client.list(limit=limit).runs}
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._news = threading.Event()
        threading.Thread(target=self._follow, name="stoppable-watch", daemon=True).start()

    def newest(self) -> Sequence[RunSummary]:
        """Return them as they are now, or raise the error of the connection."""
        with self._lock:
            if self._error is not None:
                raise self._error
            return sorted(self._runs.values(), key=lambda run: run.created_at, reverse=True)[: self._limit]

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most so long."""
        self._news.wait(seconds)
        self._news.clear()

    def _follow(self) -> None:
        while True:
            try:
                for change in self._client.changes():
                    self._take(change)
            except Exception as error:
                with self._lock:
                    self._error = error
                self._news.set()
                threading.Event().wait(_TRY_AGAIN_SECONDS)

    def _take(self, change: Change) -> None:
        listed = self._client.list(limit=self._limit).runs if change.is_reset else ()
        with self._lock:
            self._error = None
            if change.is_reset:
                self._runs = {run.id: run for run in listed}
            run = change.run
            if run is not None and not (run.id in self._runs and self._runs[run.id].over and not run.over):
                self._runs[run.id] = run  # a change that is older than the list must not bring a run back to life
            for run_id, known in self._runs.items():
                if run_id in change.in_flight or change.is_all:
                    self._runs[run_id] = replace(known, in_flight=change.in_flight.get(run_id, ()))
            for old in sorted(self._runs.values(), key=lambda run: run.created_at)[: -self._limit]:
                del self._runs[old.id]
        self._news.set()
