"""How many runs a user has at a time, over all replicas: they share a file, and the store of the runs."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import stoppable
from stoppable import Filter, Status
from user_code.agents import connected

_LIVE = frozenset({Status.PENDING, Status.RUNNING, Status.STOPPING})
_START_SECONDS = 60.0  # a replica that died in the middle of a start leaves a row


class TooManyRuns(Exception):
    """The user has as many runs as are allowed."""


class Quota:
    """Counts runs that are alive and starts that are under way."""

    def __init__(self, path: Path, supervisor: stoppable.Supervisor, most: int) -> None:
        self._path, self._supervisor, self._most = path, supervisor, most

    @contextlib.asynccontextmanager
    async def starting(self, owner: str) -> AsyncIterator[None]:
        """Let the block start a run, or raise TooManyRuns.

        Whoever wants to start says so first and looks afterwards, so that of two starts at the same moment at least one
        sees the other. The starts are read before the runs: one that becomes a run in between counts twice, not never.
        """
        token = uuid.uuid4().hex
        earlier = await stoppable.to_thread(self._announce, owner, token)
        try:
            alive = await self._supervisor.list(Filter(owner=owner, roots=True, status=_LIVE), limit=self._most)
            if earlier + len(alive.runs) >= self._most:
                raise TooManyRuns(f"You have {self._most} runs already: stop one first")
            yield
        finally:
            await stoppable.to_thread(self._withdraw, token)

    def _announce(self, owner: str, token: str) -> int:
        """Note a start, and return how many were noted before it."""
        now = time.time()
        with connected(self._path) as connection:
            connection.execute("DELETE FROM starts WHERE at < ?", (now - _START_SECONDS,))
            sql = "INSERT INTO starts (owner, token, at) VALUES (?, ?, ?) RETURNING number"
            ((number,),) = connection.execute(sql, (owner, token, now)).fetchall()
            sql = "SELECT count(*) FROM starts WHERE owner = ? AND number < ?"
            ((earlier,),) = connection.execute(sql, (owner, number)).fetchall()
        return int(earlier)

    def _withdraw(self, token: str) -> None:
        with connected(self._path) as connection:
            connection.execute("DELETE FROM starts WHERE token = ?", (token,))
