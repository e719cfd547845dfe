"""Streams as client libraries have them, for the tests of stream() and guard()."""

import asyncio
import threading

DEADLINE = 30.0


class Source:
    """A stream as client libraries have them, of numbers from 1 up; ``close`` wakes a reader."""

    def __init__(self, limit=1000, stuck_after=None):
        self.given = 0
        self.closed = 0
        self.waits = threading.Event()
        self._limit = limit
        self._stuck_after = stuck_after
        self._wake = threading.Event()

    def _next(self, end):
        if self.closed:
            raise ConnectionError("read on a closed stream")
        if self.given == self._limit:
            raise end
        self.given += 1
        return self.given

    def close(self):
        self.closed += 1
        self._wake.set()


class Blocking(Source):
    def __iter__(self):
        return self

    def __next__(self):
        if self.given == self._stuck_after:
            self.waits.set()
            assert self._wake.wait(DEADLINE), "nobody closed it"
        return self._next(StopIteration)


class Async(Source):
    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.given == self._stuck_after:
            self.waits.set()
            await asyncio.sleep(60)
        return self._next(StopAsyncIteration)

    async def close(self):
        await asyncio.sleep(0)
        super().close()


class AsyncWithAclose(Async):
    async def aclose(self):
        await super().close()

    async def close(self):
        raise AssertionError("aclose() comes first")


class IterableOnly(Source):
    """Has no ``__next__``: each iteration is a generator, and closing is up to the object."""

    def __iter__(self):
        while True:
            yield self._next(AssertionError)


class AsyncIterableOnly(Source):
    async def __aiter__(self):
        while True:
            yield self._next(AssertionError)


class Either(Async, Blocking):
    """A stream for both kinds of code, as LiteLLM has."""

    def close(self):
        Source.close(self)


async def each(chunks):
    """Iterate either kind."""
    if hasattr(type(chunks), "__aiter__"):
        async for chunk in chunks:
            yield chunk
    else:
        for chunk in chunks:
            yield chunk


def generator(source):
    """Make a generator over a source that closes it in its ``finally``, as wrappers around clients do."""
    if isinstance(source, Blocking):

        def blocking():
            try:
                for chunk in source:  # noqa: UP028 - `yield from` would close it as well
                    yield chunk
            finally:
                source.close()

        return blocking()

    async def asynchronous():
        try:
            async for chunk in source:
                yield chunk
        finally:
            await source.close()

    return asynchronous()


SOURCES = [Blocking, Async, AsyncWithAclose, IterableOnly, AsyncIterableOnly, Either]


async def settled(turns=20):
    for _ in range(turns):
        await asyncio.sleep(0)
