"""Follows a run, or all runs, over connections that may break; the clients only move the bytes."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from stoppable._core import clock
from stoppable.client import answers
from stoppable.client.calls import LONGEST_PAUSE, TRY_AGAIN, Calls, Request
from stoppable.client.changes import Change, change_of
from stoppable.client.errors import ServerUnreachable
from stoppable.client.sse import Decoder, EventParser
from stoppable.records import Event, RunRecord


class Connection:
    """A stream of a server that may break off, and how long its parser retries."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._pauses = calls.pauses()
        self._detail = ""
        self._opened_at: float | None = None
        self.is_quiet: bool = True
        """Whether the last connection brought nothing: then only the record says whether more will come."""

    def _begin(self) -> None:
        self.is_quiet = True
        self._opened_at = None
        self._detail = "the stream ended early"

    def opened(self) -> None:
        """Note that the response is a stream."""
        self._opened_at = clock.now()

    def _got_on(self) -> None:
        if self.is_quiet:
            self.is_quiet = False
            self._pauses = self._calls.pauses()  # the retry time begins anew

    def broke(self, detail: str) -> None:
        """Note why a connection ended."""
        self._detail = detail

    def _is_for_later(self, status: int) -> bool:
        if status in TRY_AGAIN:
            self._detail = f"it answered {status}"
            return True
        return False

    def pause(self) -> float:
        """Return how long to wait before the next connection, or raise if the retry time is over."""
        if self._opened_at is not None and clock.now() - self._opened_at > LONGEST_PAUSE:
            self._pauses = self._calls.pauses()  # it lasted, though no event came
        pause = next(self._pauses, None)
        if pause is None:
            raise ServerUnreachable(self._calls.url, self._detail)
        return pause


class Following(Connection):
    """Follows the events of one run across connections: keeps its place in the log."""

    def __init__(self, calls: Calls, run_id: str, after: int) -> None:
        super().__init__(calls)
        self._parser = EventParser(run_id, after)
        self._is_over = False

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        return self._parser.done or self._is_over

    def request(self) -> Request:
        """Return the request that resumes where the last connection broke off."""
        self._begin()
        self._parser.reconnect()
        return self._calls.events(self._parser.run_id, self._parser.after)

    def refused(self, status: int, content: bytes) -> None:
        """Handle a response that is not a stream; raises unless a retry may succeed."""
        if status == HTTPStatus.NO_CONTENT:
            self._is_over = True
        elif not self._is_for_later(status):
            answers.check(self._parser.run_id, status, content)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Process received bytes and yield the new events."""
        for event in self._parser.feed(data):
            self._got_on()
            yield event

    def is_behind(self, record: RunRecord) -> bool:
        """Return whether a run has, or may still get, more events than were read."""
        return not record.over or record.last_event > self._parser.after


class FollowingAll(Connection):
    """Follows the changes of all runs across connections: keeps its place in the store."""

    def __init__(self, calls: Calls, after: int | None) -> None:
        super().__init__(calls)
        self._after = after
        self._decoder = Decoder()

    def request(self) -> Request:
        """Return the request that resumes where the last connection broke off."""
        self._begin()
        self._decoder = Decoder()
        return self._calls.changes(self._after)

    def refused(self, status: int, content: bytes) -> None:
        """Handle a response that is not a stream; raises unless a retry may succeed."""
        if not self._is_for_later(status):
            answers.check("", status, content)

    def feed(self, data: bytes) -> Iterator[Change]:
        """Process received bytes and yield the changes."""
        for fields in self._decoder.feed(data):
            change = change_of(fields)
            if change is not None:
                self._got_on()
                yield change
            place = fields.get("id", "")
            if place.isdecimal():
                self._after = int(place)
