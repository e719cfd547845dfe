"""Bounds what a server keeps in memory for clients that do not read."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from stoppable.server.sse.feed import Follower


class LargeChunks:
    """The large chunks that are being sent, which readers at the same place share.

    When they take more memory than the server or one owner may use, the reader that has been at it for longest is
    dropped: the others may still read.
    """

    def __init__(self, most: int, owner_most: int) -> None:
        self._owner_most = owner_most
        self._all = _Held(most)
        self._by_owner: dict[str, _Held] = {}

    @contextlib.contextmanager
    def held(self, reader: Follower, chunk: bytes) -> Iterator[None]:
        """Count a chunk while it is sent to a reader, and drop other readers if it is too much."""
        all_held = [self._all]
        if reader.owner is not None:
            all_held.append(self._by_owner.setdefault(reader.owner, _Held(self._owner_most)))
        for held in all_held:
            held.add(reader, chunk)
        try:
            for held in all_held:
                while (slowest := held.too_much(reader)) is not None:
                    self._remove(slowest)
                    slowest.drop()
            yield
        finally:
            self._remove(reader)

    def _remove(self, reader: Follower) -> None:
        self._all.remove(reader)
        if reader.owner is not None and reader.owner in self._by_owner:
            own = self._by_owner[reader.owner]
            own.remove(reader)
            if not own.chunks:
                del self._by_owner[reader.owner]

    def __len__(self) -> int:
        return self._all.size


class _Held:
    def __init__(self, most: int) -> None:
        self.chunks: dict[Follower, bytes] = {}
        self.size = 0
        self._most = most
        self._uses: Counter[int] = Counter()

    def add(self, reader: Follower, chunk: bytes) -> None:
        self.chunks[reader] = chunk
        if not self._uses[id(chunk)]:
            self.size += len(chunk)
        self._uses[id(chunk)] += 1

    def remove(self, reader: Follower) -> None:
        chunk = self.chunks.pop(reader, None)
        if chunk is not None:
            self._uses[id(chunk)] -= 1
            if not self._uses[id(chunk)]:
                del self._uses[id(chunk)]
                self.size -= len(chunk)

    def too_much(self, but: Follower) -> Follower | None:
        """Return the reader to drop, if any: not the one that has just begun."""
        if self.size <= self._most:
            return None
        return next((reader for reader in self.chunks if reader is not but), None)
