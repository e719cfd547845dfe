"""The Store protocol over a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from stoppable._engine.boot import boot_clock
from stoppable._extras import pip_install
from stoppable.errors import InvalidArgument, StoreError
from stoppable.stores.base import EVENTS_KEPT, wall_clock
from stoppable.stores.sql.engine import SqlEngine
from stoppable.stores.sql.store import Calls, SqlStore
from stoppable.stores.sqlite import events, retention, runs, stops


class SqliteStore(SqlStore[SqlEngine]):
    """Keeps runs in one file, for several processes of one machine; needs ``pip install "stoppable[sqlite]"``.

    One thread writes and one reads; calls that wait for the first share a transaction. ``synchronous="normal"`` loses
    the last calls if the machine goes down, not if a process does; ``"full"`` loses nothing that was answered.
    """

    _calls = Calls(
        register=runs.register,
        request_stop=stops.request_stop,
        acknowledge=runs.acknowledge,
        finish=runs.finish,
        append=events.append,
        in_flight=events.in_flight,
        purge=retention.purge,
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        clock: Callable[[], float] = wall_clock,
        lease_clock: Callable[[], float] = boot_clock,
        events_kept: int = EVENTS_KEPT,
    ) -> None:
        if synchronous not in {"full", "normal"}:
            raise InvalidArgument(f"synchronous is {synchronous!r}: use full or normal")
        super().__init__(str(path), events_kept)
        self.path: Path = Path(path)
        self._synchronous = synchronous
        self._clock = clock
        self._lease_clock = lease_clock

    def now(self) -> float:
        """Return the time."""
        return self._clock()

    def _connect(self) -> SqlEngine:
        try:
            from stoppable.stores.sqlite.engine import Engine  # noqa: PLC0415 - apsw is needed now, and not before
        except ModuleNotFoundError as error:
            raise StoreError(f"runs in a file need apsw: {pip_install('sqlite')} ({error})") from error
        return Engine(
            self.path,
            synchronous=self._synchronous,
            clock=self._clock,
            lease_clock=self._lease_clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )
