"""Feeds: streams that follow the same events are woken together, and each event is encoded once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from stoppable._core import clock
from stoppable.records import Event
from stoppable.server.responses import dumps, one_line
from stoppable.stores.base import Store

_PIECES_BYTES = 16_000_000
_EMPTY_SECONDS = 1.0  # how long it counts that there was nothing new: a notification may be lost


_numbers = itertools.count()


class Piece(NamedTuple):
    """The next data to send, the number that a client has then, and whether the stream ends with it.

    ``is_all`` says that there was nothing after it when it was read; later events wake the reader.
    """

    chunk: bytes
    after: int
    is_last: bool = False
    is_all: bool = False


class Pieces:
    """What was last read for the readers of all feeds; forgets what was not used for longest."""

    def __init__(self, most: int = _PIECES_BYTES) -> None:
        self._most = most
        self._size = 0
        self._found: OrderedDict[Hashable, Piece] = OrderedDict()

    def get(self, key: Hashable) -> Piece | None:
        """Return a piece; there may be more after it by now."""
        piece = self._found.get(key)
        if piece is None:
            return None
        self._found.move_to_end(key)
        return piece._replace(is_all=False)

    def put(self, key: Hashable, piece: Piece) -> None:
        """Keep a piece for a while."""
        if key not in self._found:
            self._found[key] = piece
            self._size += len(piece.chunk)
        while self._size > self._most:
            self._size -= len(self._found.popitem(last=False)[1].chunk)


class _Empty(NamedTuple):
    """That there was nothing to send: at what time, and before which wake-up."""

    piece: Piece
    at: float
    wakes: int


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

    def drop(self) -> None:
        """Drop the client, which may resume."""
        ...


class Feed:
    """Wakes the readers of a run, or of all runs, when there are new events.

    Readers at the same place share what is read for one of them: the store is asked once, and each event is encoded
    once, however many readers there are.
    """

    __slots__ = (
        "_empty",
        "_is_woken",
        "_loop",
        "_number",
        "_pause",
        "_reading",
        "_subscription",
        "_wakes",
        "pieces",
        "readers",
    )

    def __init__(self, store: Store, name: str, pause: float = 0.0) -> None:
        """Wake readers on changes under a name, at most once in ``pause`` seconds."""
        self.readers: list[Follower] = []
        self._loop = asyncio.get_running_loop()
        self._is_woken = False
        self._pause = pause
        self.pieces: Pieces = Pieces()
        """Streams lets all feeds share one."""
        self._number = next(_numbers)
        self._empty: dict[Hashable, _Empty] = {}
        self._reading: dict[Hashable, asyncio.Future[None]] = {}
        self._wakes = 0
        self._subscription = store.watch(name, self._wake)

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()

    async def piece(self, kind: Hashable, after: int, read: Callable[[], Awaitable[Sequence[Piece]]]) -> Piece:
        """Return the data after a number for readers of one kind: what was read before, or what ``read`` returns.

        ``read`` returns one piece after the other, or one that is empty.
        """
        key = kind, after
        while (found := self._known(key)) is None:
            reading = self._reading.get(key)
            if reading is not None:
                await asyncio.wait([reading])  # and look again: it may have failed, or found nothing
                continue
            reading = self._reading[key] = self._loop.create_future()
            at, wakes = clock.now(), self._wakes
            try:
                pieces = await read()
            finally:
                del self._reading[key]
                reading.set_result(None)
            if not pieces[0].chunk:
                self._empty[key] = _Empty(pieces[0], at, wakes)
                return pieces[0]
            for piece in pieces:
                self.pieces.put((self._number, kind, after), piece)
                after = piece.after
            return pieces[0]
        return found

    def _known(self, key: tuple[Hashable, int]) -> Piece | None:
        empty = self._empty.get(key)
        if empty is not None:
            if empty.wakes == self._wakes and clock.now() - empty.at < _EMPTY_SECONDS:
                return empty.piece
            del self._empty[key]
        return self.pieces.get((self._number, *key))

    def _wake(self) -> None:
        self._wakes += 1
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
        self._empty.clear()
        for reader in self.readers:
            reader.wake()


def encode(event: Event, place: int) -> bytes:
    """Return an encoded event, with the number from which a client resumes."""
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
