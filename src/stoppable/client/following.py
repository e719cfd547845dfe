"""Follows the events of a run over connections that break; the shells only move the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from stoppable._core import clock
from stoppable.client import answers
from stoppable.client.calls import LONGEST_PAUSE, TRY_AGAIN, Calls, Request
from stoppable.client.errors import ServerUnreachable
from stoppable.client.sse import Reader
from stoppable.records import Event, RunRecord


class Following:
    """One reader, its place in the log, and its patience."""

    def __init__(self, calls: Calls, run_id: str, after: int) -> None:
        self._calls = calls
        self._reader = Reader(run_id, after)
        self._pauses = calls.pauses()
        self._detail = ""
        self._opened_at: float | None = None
        self._is_over = False
        self.is_quiet = True
        """Whether the last connection brought nothing: then only the record can say whether there is more to come."""

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        return self._reader.done or self._is_over

    def request(self) -> Request:
        """Begin a connection where the last one broke off."""
        self._reader.reconnect()
        self.is_quiet = True
        self._opened_at = None
        self._detail = "the stream ended early"
        return self._calls.events(self._reader.run_id, self._reader.after)

    def opened(self) -> None:
        """Take in that the answer is a stream."""
        self._opened_at = clock.now()

    def refused(self, status: int, content: bytes) -> None:
        """Take in an answer that is no stream; raises unless it may be one later."""
        if status == HTTPStatus.NO_CONTENT:
            self._is_over = True
            return
        if status in TRY_AGAIN:
            self._detail = f"it answered {status}"
            return
        answers.check(self._reader.run_id, status, content)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take in bytes and yield the events that are new."""
        for event in self._reader.feed(data):
            if self.is_quiet:
                self.is_quiet = False
                self._pauses = self._calls.pauses()  # it got on: the time for tries begins anew
            yield event

    def broke(self, detail: str) -> None:
        """Note why a connection ended."""
        self._detail = detail

    def is_behind(self, record: RunRecord) -> bool:
        """Return whether a run has told, or may yet tell, more than was read."""
        return not record.over or record.last_event > self._reader.after

    def pause(self) -> float:
        """Return how long to wait before the next connection, or raise if there is no sense in one."""
        if self._opened_at is not None and clock.now() - self._opened_at > LONGEST_PAUSE:
            self._pauses = self._calls.pauses()  # it lasted, though the run was silent
        pause = next(self._pauses, None)
        if pause is None:
            raise ServerUnreachable(self._calls.url, self._detail)
        return pause
