"""Functions and generators under ``@boundary``: what they were, and a boundary besides."""

import asyncio
import contextlib

import pytest

import stoppable
from stoppable import InvalidArgument


async def test_boundaries_decorate_every_kind_of_function():
    @stoppable.boundary("tool", "named")
    def plain(x):
        return x + 1

    @stoppable.boundary("tool")
    async def asynchronous(x):
        return x + 1

    @stoppable.boundary("llm")
    def chunks():
        yield from range(3)

    @stoppable.boundary("llm")
    async def async_chunks():
        for i in range(3):
            yield i

    async with stoppable.open_run("work"):
        assert (plain(1), await asynchronous(1)) == (2, 2)
        assert list(chunks()) == [0, 1, 2]
        assert [i async for i in async_chunks()] == [0, 1, 2]
    assert asyncio.iscoroutinefunction(asynchronous)
    with pytest.raises(InvalidArgument, match="not a function"):
        stoppable.boundary("tool")(3)


async def test_a_decorated_generator_gets_what_is_sent_and_thrown_into_it_and_returns_its_value():
    @stoppable.boundary("tool")
    def echoes():
        try:
            heard = yield "first"
            heard = yield f"heard {heard}"
        except ValueError as error:
            heard = yield f"caught {error}"
        return f"the end: {heard}"

    @stoppable.boundary("tool")
    async def async_echoes():
        try:
            heard = yield "first"
            yield f"heard {heard}"
        except ValueError as error:
            yield f"caught {error}"

    async with stoppable.open_run("work") as run:
        echo, async_echo = echoes(), async_echoes()
        assert (next(echo), echo.send("a"), echo.throw(ValueError("b"))) == ("first", "heard a", "caught b")
        with pytest.raises(StopIteration) as end:
            echo.send("c")
        assert end.value.value == "the end: c"
        assert (await anext(async_echo), await async_echo.asend("a")) == ("first", "heard a")
        assert await async_echo.athrow(ValueError("b")) == "caught b"
        with pytest.raises(StopAsyncIteration):
            await async_echo.asend("c")
        assert not run.members


async def test_a_decorated_context_manager_sees_the_error_of_its_block():
    seen = []

    @contextlib.contextmanager
    @stoppable.boundary("store")
    def transaction():
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    @contextlib.asynccontextmanager
    @stoppable.boundary("store")
    async def async_transaction():
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    async with stoppable.open_run("work"):
        first, second = ValueError("first"), ValueError("second")
        with pytest.raises(ValueError, match="first"), transaction():
            raise first
        with pytest.raises(ValueError, match="second"):
            async with async_transaction():
                raise second
    assert seen == [first, second]


async def test_a_decorated_stream_stops_between_chunks_and_is_closed():
    closed = []

    @stoppable.boundary("llm")
    def chunks():
        try:
            yield from range(100)
        finally:
            closed.append("sync")

    @stoppable.boundary("llm")
    async def async_chunks():
        try:
            for i in range(100):
                yield i
        finally:
            closed.append("async")

    received = []
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            for i in chunks():
                received.append(i)
                if i == 1:
                    run.stop("cooperative")
    with pytest.raises(stoppable.RunStopped):
        async with stoppable.open_run("work") as run:
            async for i in async_chunks():
                received.append(i)
                if i == 1:
                    run.stop("cooperative")
    assert received == [0, 1, 0, 1]
    assert closed == ["sync", "async"]


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_decorated_stream_that_is_kept_open_does_not_hold_the_run_up(blocking):
    kept = []

    @stoppable.boundary("llm")
    def chunks():
        yield from range(9)

    @stoppable.boundary("llm")
    async def async_chunks():
        for number in range(9):
            yield number

    def agent():
        kept.append(chunks())
        for _ in kept[0]:
            stoppable.current_run().stop("cooperative")
            stoppable.check()

    async def async_agent():
        kept.append(async_chunks())
        async for _ in kept[0]:
            stoppable.current_run().stop("cooperative")
            stoppable.check()

    handle = await stoppable.spawn(agent if blocking else async_agent)
    async with asyncio.timeout(30):
        assert (await handle.outcome()).status == "stopped"
    if blocking:
        kept[0].close()
    else:
        await kept[0].aclose()
