"""Server-sent events out of bytes, and where a reader stands in a run's log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from stoppable import _wire
from stoppable.client.answers import SHAPE_ERRORS
from stoppable.errors import StoppableError
from stoppable.records import Event, EventType


class Decoder:
    """Turns bytes, cut anywhere, into the fields of whole messages.

    Lines end with LF or CRLF and nothing else: a text may well contain U+2028, where ``str.splitlines`` would cut it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> Iterator[Mapping[str, str]]:
        """Take in what arrived and yield the messages that are complete."""
        self._buffer += data
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = bytearray(rest)
        for line in lines:
            text = bytes(line).removesuffix(b"\r").decode(errors="replace")
            if not text:
                if self._fields:
                    yield self._fields
                self._fields = {}
            elif not text.startswith(":"):
                name, _, value = text.partition(":")
                self._add(name, value.removeprefix(" "))

    def _add(self, name: str, value: str) -> None:
        earlier = self._fields.get(name)
        self._fields[name] = f"{earlier}\n{value}" if name == "data" and earlier is not None else value


class Reader:
    """Where somebody stands in the events of a run: no event is told twice, and none is left out."""

    def __init__(self, run_id: str, after: int) -> None:
        self.run_id = run_id
        self.after = after
        self.done = False
        self._decoder = Decoder()

    def reconnect(self) -> None:
        """Forget half a message: the next connection begins after the last whole one."""
        self._decoder = Decoder()

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take in what arrived and yield the events that are new."""
        for fields in self._decoder.feed(data):
            if not fields.get("id", "").isdecimal():
                continue  # a marker of the connection, not an event of the run
            event = self._parsed(fields)
            if event.seq <= self.after:
                continue
            self.after = event.seq
            self.done = event.type is EventType.DONE
            yield event
            if self.done:
                return

    def _parsed(self, fields: Mapping[str, str]) -> Event:
        try:
            return _wire.load(Event, {**json.loads(fields.get("data", "")), "seq": int(fields["id"])})
        except SHAPE_ERRORS:
            raise StoppableError(
                f"the events of run {self.run_id} cannot be read: is this a stoppable server?"
            ) from None
