"""Parses server-sent events, and tracks the position in a run's log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from stoppable import _json
from stoppable.client.answers import SHAPE_ERRORS
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType


class Decoder:
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
        self._decoder = Decoder()

    def reconnect(self) -> None:
        """Discard an incomplete message; the next connection begins after the last complete one."""
        self._decoder = Decoder()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Process received bytes and yield the new events."""
        for fields in self._decoder.feed(data):
            if not fields.get("id", "").isdecimal():
                continue  # a marker of the connection, not an event of the run
            event = self._parsed(fields)
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

    def _parsed(self, fields: Mapping[str, str]) -> Event | None:
        """Return an event, or None for one that only a newer version knows."""
        try:
            data = {**json.loads(fields.get("data", "")), "seq": int(fields["id"])}
            return _json.load(Event, data) if data["type"] in set(EventType) else None
        except SHAPE_ERRORS:
            raise StoppableError(
                f"the events of run {self.run_id} cannot be read: is this a stoppable server?"
            ) from None
