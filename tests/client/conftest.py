"""Both clients behind one face, against a real server."""

import asyncio
import inspect

import pytest

from stoppable._core.values import new_id
from stoppable.client import AsyncClient, AsyncClientRun, Client


@pytest.fixture
def server(served):
    return served


class Driven:
    """An async client that is driven from blocking tests, so that one test serves both."""

    def __init__(self, *args, **kwargs):
        self.inner = AsyncClient(*args, **kwargs)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name):
        return getattr(_Held(self._loop, self.inner), name)

    def close(self):
        self._loop.run_until_complete(self.inner.close())
        self._loop.close()


class _Block:
    def __init__(self, loop, inner):
        self._loop, self._inner = loop, inner

    def __enter__(self):
        return _Held(self._loop, self._loop.run_until_complete(self._inner.__aenter__()))

    def __exit__(self, *error):
        return self._loop.run_until_complete(self._inner.__aexit__(*error))


class _Held:
    def __init__(self, loop, inner):
        self._loop, self._inner = loop, inner

    def __getattr__(self, name):
        value = getattr(self._inner, name)
        return (lambda *args, **kwargs: _drive(self._loop, value(*args, **kwargs))) if callable(value) else value


def _drive(loop, found):
    if isinstance(found, AsyncClientRun):
        return _Held(loop, found)
    if inspect.isasyncgen(found):
        return _steps(loop, found)
    if hasattr(found, "__aenter__"):
        return _Block(loop, found)
    result = loop.run_until_complete(found)
    return _Held(loop, result) if isinstance(result, AsyncClientRun) else result


def _steps(loop, generator):
    try:
        while True:
            try:
                yield loop.run_until_complete(anext(generator))
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(generator.aclose())


@pytest.fixture(params=[Client, Driven], ids=["blocking", "async"])
def connect(request):
    """Make clients that are closed after the test."""
    made = []

    def make(*args, **kwargs):
        made.append(request.param(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client(connect, server):
    return connect(server)


@pytest.fixture
def unique():
    """Return a word that no other test uses: they share the server."""
    return f"unique-{new_id()[:8]}"
