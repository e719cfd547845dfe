"""Bodies of answers, which are read as a part of the run: a stream stops between two chunks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from stoppable._engine.outgoing.calls import Call
from stoppable._engine.streaming import closing
from stoppable._engine.streaming.stream import AsyncChunks, BlockingChunks

_STREAMS = ("event-stream", "ndjson", "jsonl", "stream+json", "json-seq", "eventstream")


def is_stream(content_type: str | None) -> bool:
    """Return whether a body of this type arrives piece by piece, and its reader uses each piece at once.

    Any other body is read to its end after a graceful stop: it is one answer.
    """
    return content_type is not None and any(name in content_type for name in _STREAMS)


class BlockingBody(BlockingChunks[Any]):
    """A body that blocking code reads."""

    __slots__ = ("_call", "_cut_off")

    def __init__(self, source: Any, call: Call, *, finish: bool = False, cut: Callable[[], bool]) -> None:
        super().__init__(source, finish=finish, entry=call)
        self._call = call
        self._cut_off = cut

    def __next__(self) -> bytes:
        chunk: bytes = super().__next__()
        if self._call.answer is not None:
            self._call.answer.add(chunk)
        return chunk

    def read(self, operation: Callable[..., Any], *args: Any) -> Any:
        """Read with a method of the source, as a part of the run."""
        return self._step(lambda: operation(*args))

    def end(self) -> None:
        """Note that the body was read or closed."""
        if not self._over:
            self._over = True
            self._leave()

    def _interrupt(self) -> None:
        if self._over or self._is_shielded:
            return
        self._cut = True
        with contextlib.suppress(Exception):
            if not self._cut_off():
                closing.close_all((self._source,))


class AsyncBody(AsyncChunks[Any]):
    """A body that a task reads."""

    __slots__ = ("_call", "_cut_off")

    def __init__(
        self, source: Any, call: Call, *, finish: bool = False, cut: Callable[[], object] | None = None
    ) -> None:
        super().__init__(source, finish=finish, entry=call)
        self._call = call
        self._cut_off = cut

    # A second cancel, such as that of KILL, may hit the client while it closes, and the server would go on.

    def _read_failed(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._cut_off is not None:
            self._cut_off()
        super()._read_failed(error)

    async def _shut_async(self) -> None:
        try:
            await super()._shut_async()
        except asyncio.CancelledError:
            if self._cut_off is not None:
                self._cut_off()
            raise

    @property
    def is_over(self) -> bool:
        """Whether it has arrived as a whole, or was closed."""
        return self._over and not self._cut

    async def __anext__(self) -> bytes:
        chunk: bytes = await super().__anext__()
        if self._call.answer is not None:
            self._call.answer.add(chunk)
        return chunk

    async def read(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Read with a method of the source, as a part of the run."""
        return await self._step_async(lambda: operation(*args, **kwargs))

    def end(self) -> None:
        """Note that the body was read or closed."""
        if not self._over:
            self._over = True
            self._leave()
