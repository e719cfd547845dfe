"""Feeds: streams that follow the same events are woken together, and each event is encoded once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from stoppable.records import Event
from stoppable.server.responses import dumps, one_line
from stoppable.stores.base import Store

_ENCODED_KEPT = 512
_ENCODED_BYTES = 2_000_000


class Follower(Protocol):
    """An open stream, as its feed sees it."""

    @property
    def owner(self) -> str | None:
        """The owner whose runs the reader may see; None for all."""
        ...

    @property
    def keeps_run(self) -> bool:
        """Whether the run is stopped after this reader and all others like it have left."""
        ...

    def wake(self) -> None:
        """Read the log again."""
        ...

    def check(self, now: float) -> None:
        """Drop a client that does not read."""
        ...


class Feed:
    """Wakes the readers of a run, or of all runs, when there are new events."""

    __slots__ = ("_encoded", "_is_woken", "_loop", "_pause", "_size", "_subscription", "readers")

    def __init__(self, store: Store, name: str, pause: float = 0.0) -> None:
        """Wake readers on changes under a name, at most once in ``pause`` seconds."""
        self.readers: list[Follower] = []
        self._loop = asyncio.get_running_loop()
        self._is_woken = False
        self._pause = pause
        self._encoded: dict[int, bytes] = {}
        self._size = 0
        self._subscription = store.watch(name, self._wake)

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()

    def encode(self, event: Event, place: int) -> bytes:
        """Return the encoded event, with the number from which a client resumes."""
        if len(self.readers) == 1:
            return _encode(event, place)
        encoded = self._encoded.get(place)
        if encoded is None:
            encoded = _encode(event, place)
            self._size += len(encoded)
            if len(self._encoded) >= _ENCODED_KEPT or self._size > _ENCODED_BYTES:
                self._encoded.clear()
                self._size = len(encoded)
            self._encoded[place] = encoded
        return encoded

    def _wake(self) -> None:
        if not self._is_woken:  # once for many events
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self._pause:
            self._loop.call_later(self._pause, self.wake_all)
        else:
            self.wake_all()

    def wake_all(self) -> None:
        """Wake every reader."""
        self._is_woken = False
        for reader in self.readers:
            reader.wake()


def _encode(event: Event, place: int) -> bytes:
    kind = event.type._value_  # before 3.12, .value is slower than a call
    return message(
        kind, {"runId": event.run_id, "seq": event.seq, "at": event.at, "type": kind, "data": event.data}, place
    )


def message(kind: str, data: object, place: int | None = None) -> bytes:
    """Return an event of a stream; without a place, it does not affect where a client resumes."""
    text = dumps(data)
    if not text.isascii():
        text = one_line(text)
    # JSON has no line breaks, so nothing that an agent emits can end the event early.
    if place is None:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), text)
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (place, kind.encode(), text)
