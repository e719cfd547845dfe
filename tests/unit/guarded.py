"""Objects that tests of guard() guard."""

import asyncio
import functools
import types

import stoppable
from stoppable._core.boundary import Boundary


class Store:
    """A data store, as an agent's tools have one."""

    def __init__(self):
        self.data = {}
        self.is_open = True

    def get(self, key, default=None):
        return self.data.get(key, default)

    def set(self, key, value):
        self.data[key] = value

    def delete(self, key):
        del self.data[key]

    def list(self):
        yield from sorted(self.data)


class AsyncStore:
    def __init__(self):
        self.data = {}
        self.hold = asyncio.Event()
        self.hold.set()
        self.entered = asyncio.Event()

    async def get(self, key):
        self.entered.set()
        await self.hold.wait()
        return self.data.get(key)

    async def set(self, key, value):
        self.data[key] = value

    async def list(self):
        for key in sorted(self.data):
            yield key


class Completions:
    """As in a client library: a plain function that returns a coroutine, which may give a stream."""

    def __init__(self, source):
        self._source = source

    def create(self, *, stream=False, prompt=""):
        return self._create(stream)

    async def _create(self, is_streamed):
        await asyncio.sleep(0)
        return self._source if is_streamed else "answer"

    def create_blocking(self, *, stream=False):
        return self._source if stream else "answer"


class Client:
    def __init__(self, source=None):
        self._source = source

    @functools.cached_property
    def chat(self):
        return types.SimpleNamespace(completions=Completions(self._source))

    @property
    def anew(self):
        return Completions(self._source)


def in_flight():
    return [m.label for m in stoppable.current_run().members if isinstance(m, Boundary)]


async def in_run(function, *args):
    async with stoppable.open_run("work"):
        return await function(*args)


METHODS = ("get", "set", "delete", "list")
