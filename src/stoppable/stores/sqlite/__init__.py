"""Keeps runs in one SQLite file, which several processes of one machine may share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from stoppable._engine.processes.table import boot_clock
from stoppable._extras import pip_install
from stoppable.errors import InvalidArgument, StoreError
from stoppable.stores.base import EVENTS_KEPT, wall_clock
from stoppable.stores.sql.sql_engine import SqlEngine
from stoppable.stores.sql.sql_store import SqlStore, StoreCalls
from stoppable.stores.sqlite import lite_runs, lite_stops

__all__ = ["SqliteStore", "from_url"]

_SYNCHRONOUS: dict[str, Literal["full", "normal"]] = {
    "": "full",
    "synchronous=full": "full",
    "synchronous=normal": "normal",
}


class SqliteStore(SqlStore[SqlEngine]):
    """Keeps runs in one file, for several processes of one machine; needs ``pip install "stoppable[sqlite]"``.

    One thread writes and one reads; calls that wait for the first share a transaction. ``synchronous="normal"`` loses
    the last calls if the machine goes down, not if a process does; ``"full"`` loses nothing that was answered.
    """

    _calls = StoreCalls(
        register=lite_runs.register,
        request_stop=lite_stops.request_stop,
        acknowledge=lite_runs.acknowledge,
        finish=lite_runs.finish,
        append=lite_runs.append,
        in_flight=lite_runs.in_flight,
        purge=lite_runs.purge,
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
            from stoppable.stores.sqlite.lite_engine import LiteEngine  # noqa: PLC0415 - apsw is needed now, and not before
        except ModuleNotFoundError as error:
            raise StoreError(f"runs in a file need apsw: {pip_install('sqlite')} ({error})") from error
        return LiteEngine(
            self.path,
            synchronous=self._synchronous,
            clock=self._clock,
            lease_clock=self._lease_clock,
            events_kept=self._events_kept,
            hints=self._hints,
            watchers=self._watchers,
        )


def from_url(url: str) -> SqliteStore:
    """Return the store of a file: sqlite:///runs.db is in the current folder, sqlite:////var/runs.db is not."""
    parts = urlsplit(url)
    path = unquote(parts.path).removeprefix("/")
    if parts.netloc or not path:
        raise InvalidArgument(f"invalid store URL {url!r}: name a file, as in sqlite:///runs.db")
    if parts.query not in _SYNCHRONOUS or parts.fragment:
        raise InvalidArgument(
            f"unknown option in the store URL {url!r}: after the path write nothing, "
            "?synchronous=full or ?synchronous=normal; in the path ? is %3F and # is %23"
        )
    return SqliteStore(path, synchronous=_SYNCHRONOUS[parts.query])
