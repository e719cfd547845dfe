"""Prints on a thread, so that a slow reader of the output does not delay Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading


class Printer:
    """Writes texts to the standard output in their order."""

    def __init__(self) -> None:
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        # A daemon: it may be stuck for good.
        threading.Thread(target=self._work, name="stoppable-printer", daemon=True).start()

    def print(self, text: str) -> None:
        """Write a text soon, or raise what an earlier one failed with."""
        if self._ended.done() and (error := self._ended.result()) is not None:
            raise error
        self._texts.put(text)

    async def finish(self) -> None:
        """Wait until all is written, or raise what it failed with."""
        self._texts.put(None)
        if (error := await self._ended) is not None:
            raise error

    def _work(self) -> None:
        failure = None
        try:
            while (text := self._texts.get()) is not None:
                _write(text)
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self._ended.get_loop().call_soon_threadsafe(self._end, failure)

    def _end(self, failure: Exception | None) -> None:
        if not self._ended.done():  # the wait for it may have been cancelled
            self._ended.set_result(failure)


def _write(text: str) -> None:
    """Write below the buffer of the output: while this is stuck, its lock would hold up every other print."""
    stdout = sys.stdout
    data = memoryview(text.encode(stdout.encoding, stdout.errors or "strict"))
    stdout.flush()  # what the agent printed before
    raw = getattr(stdout.buffer, "raw", stdout.buffer)
    while data:
        data = data[raw.write(data) :]
