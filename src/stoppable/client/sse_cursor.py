"""Follows a run, or all runs, over event streams that may break: parses bytes, and keeps the place to resume from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus

from stoppable import _json
from stoppable._core import clock
from stoppable.client import server_answers as answers
from stoppable.client.call_plans import LONGEST_PAUSE, TRY_AGAIN, CallPlans, HttpRequest
from stoppable.client.server_answers import SHAPE_ERRORS, Change, ServerUnreachable, change_of
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType, RunRecord


class SseDecoder:
    """Turns bytes, cut anywhere, into the fields of whole messages.

    Lines end only with LF or CRLF: a text may contain U+2028, at which ``str.splitlines`` would split it.
    """

    def __init__(self, longest: int = 64_000_000) -> None:
        self._longest = longest
        self._buffer = bytearray()
        self._size = 0
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[Mapping[str, str]]:
        """Process received bytes and yield the complete messages."""
        self._buffer += data
        if b"\n" in data:  # searching a long line again with each piece of it would be quadratic
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                yield from self._take(line)
        if self._size + len(self._buffer) > self._longest:
            raise StoppableError(f"an event has more than {self._longest:,} bytes: is this a stoppable server?")

    def _take(self, line: bytearray) -> Iterator[Mapping[str, str]]:
        text = line.removesuffix(b"\r").decode(errors="replace")
        if not text:
            if self._fields:
                yield self._fields
            self._fields, self._size = {}, 0
        elif not text.startswith(":"):
            self._size += len(line)
            name, _, value = text.partition(":")
            self._add(name, value.removeprefix(" "))

    def _add(self, name: str, value: str) -> None:
        earlier = self._fields.get(name)
        self._fields[name] = f"{earlier}\n{value}" if name == "data" and earlier is not None else value


class EventParser:
    """Parses the events of a run and tracks the position, so that no event is repeated or missed."""

    def __init__(self, run_id: str, after: int) -> None:
        self.run_id = run_id
        self.after: int = after
        self.done: bool = False
        self._decoder = SseDecoder()

    def reconnect(self) -> None:
        """Discard an incomplete message; the next connection begins after the last complete one."""
        self._decoder = SseDecoder()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Process received bytes and yield the new events."""
        for fields in self._decoder.feed(data):
            if not fields.get("id", "").isdecimal():
                continue  # a marker of the connection, not an event of the run
            event = self._parse(fields)
            seq = int(fields["id"])
            if seq <= self.after:
                continue
            self.after = seq
            if event is None:
                continue
            self.done = event.type is EventType.DONE
            yield event
            if self.done:
                return

    def _parse(self, fields: Mapping[str, str]) -> Event | None:
        """Return an event, or None for one that only a newer version knows."""
        try:
            data = {**json.loads(fields.get("data", "")), "seq": int(fields["id"])}
            return _json.load(Event, data) if data["type"] in set(EventType) else None
        except SHAPE_ERRORS:
            raise StoppableError(
                f"the events of run {self.run_id} cannot be read: is this a stoppable server?"
            ) from None


class SseCursor:
    """The place in a stream of a server that may break off, and how long to retry."""

    def __init__(self, plans: CallPlans) -> None:
        self._plans = plans
        self._pauses = plans.pauses()
        self._detail = ""
        self._opened_at: float | None = None
        self.is_quiet: bool = True
        """Whether the last connection brought nothing: then only the record says whether more will come."""

    def _begin(self) -> None:
        self.is_quiet = True
        self._opened_at = None
        self._detail = "the stream ended early"

    def on_open(self) -> None:
        """Note that the response is a stream."""
        self._opened_at = clock.now()

    def _on_progress(self) -> None:
        if self.is_quiet:
            self.is_quiet = False
            self._pauses = self._plans.pauses()  # the retry time begins anew

    def on_error(self, detail: str) -> None:
        """Note why a connection ended."""
        self._detail = detail

    def _may_retry(self, status: int) -> bool:
        if status in TRY_AGAIN:
            self._detail = f"it answered {status}"
            return True
        return False

    def pause(self) -> float:
        """Return how long to wait before the next connection, or raise if the retry time is over."""
        if self._opened_at is not None and clock.now() - self._opened_at > LONGEST_PAUSE:
            self._pauses = self._plans.pauses()  # it lasted, though no event came
        pause = next(self._pauses, None)
        if pause is None:
            raise ServerUnreachable(self._plans.url, self._detail)
        return pause


class RunCursor(SseCursor):
    """Follows the events of one run across connections: keeps its place in the log."""

    def __init__(self, plans: CallPlans, run_id: str, after: int) -> None:
        super().__init__(plans)
        self._parser = EventParser(run_id, after)
        self._is_over = False

    @property
    def done(self) -> bool:
        """Whether nothing more can come."""
        return self._parser.done or self._is_over

    def request(self) -> HttpRequest:
        """Return the request that resumes where the last connection broke off."""
        self._begin()
        self._parser.reconnect()
        return self._plans.events(self._parser.run_id, self._parser.after)

    def on_refusal(self, status: int, content: bytes) -> None:
        """Handle a response that is not a stream; raises unless a retry may succeed."""
        if status == HTTPStatus.NO_CONTENT:
            self._is_over = True
        elif not self._may_retry(status):
            answers.check(self._parser.run_id, status, content)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Process received bytes and yield the new events."""
        for event in self._parser.feed(data):
            self._on_progress()
            yield event

    def is_behind(self, record: RunRecord) -> bool:
        """Return whether a run has, or may still get, more events than were read."""
        return not record.over or record.last_event > self._parser.after


class ChangesCursor(SseCursor):
    """Follows the changes of all runs across connections: keeps its place in the store."""

    def __init__(self, plans: CallPlans, after: int | None) -> None:
        super().__init__(plans)
        self._after = after
        self._decoder = SseDecoder()

    def request(self) -> HttpRequest:
        """Return the request that resumes where the last connection broke off."""
        self._begin()
        self._decoder = SseDecoder()
        return self._plans.changes(self._after)

    def on_refusal(self, status: int, content: bytes) -> None:
        """Handle a response that is not a stream; raises unless a retry may succeed."""
        if not self._may_retry(status):
            answers.check("", status, content)

    def feed(self, data: bytes) -> Iterator[Change]:
        """Process received bytes and yield the changes."""
        for fields in self._decoder.feed(data):
            change = change_of(fields)
            if change is not None:
                self._on_progress()
                yield change
            place = fields.get("id", "")
            if place.isdecimal():
                self._after = int(place)
