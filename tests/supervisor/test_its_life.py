"""A supervisor is opened once and closed once, whatever happens around it."""

import asyncio
import threading

import pytest
from tests.supervisor.test_lease import Faulty
from tests.waiting import until

import stoppable
from stoppable import Supervisor, sync
from stoppable.errors import InvalidArgument
from stoppable.stores.memory import MemoryStore

from .kept_agents import forever, steps


async def test_it_is_opened_once(store):
    supervisor = Supervisor(store)
    with pytest.raises(InvalidArgument, match="is not open: use it in a with block"):
        await supervisor.close()
    async with supervisor:
        with pytest.raises(InvalidArgument, match="make a new Supervisor"):
            async with supervisor:
                raise AssertionError("it is open")
        assert await (await supervisor.start(steps, 1)).result() == 1
    await supervisor.close()
    with pytest.raises(InvalidArgument, match="make a new Supervisor"):
        async with supervisor:
            raise AssertionError("its lease is over")


def test_so_is_that_of_blocking_code(store):
    supervisor = sync.Supervisor(store)
    with pytest.raises(InvalidArgument, match="is not open: use it in a with block"):
        supervisor.close()
    with supervisor:
        with pytest.raises(InvalidArgument, match="make a new Supervisor"):
            supervisor.__enter__()
    supervisor.close()
    with pytest.raises(InvalidArgument, match="make a new Supervisor"):
        supervisor.__enter__()


async def test_it_can_be_opened_once_its_store_can_be(store):
    faulty = Faulty(store)
    faulty.failing = {"open_worker"}
    supervisor = Supervisor(faulty)
    with pytest.raises(OSError, match="disk is full"):
        await supervisor.__aenter__()
    faulty.failing = set()
    async with supervisor:
        assert await (await supervisor.start(steps, 1)).result() == 1


async def test_one_that_was_opened_in_a_run_is_closed_when_that_is_stopped(store):
    supervisor = Supervisor(store)

    async def agent():
        async with supervisor:
            await supervisor.start(forever, run_id="inner")
            await forever()

    handle = await stoppable.spawn(agent)
    await until(lambda: "inner" in supervisor._core.writer.logs)
    handle.run.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.clean, supervisor.is_open) == ("stopped", True, False)
    assert supervisor._core.writer.logs == {}


async def test_one_whose_closing_is_cancelled_is_closed_all_the_same(store):
    async with asyncio.timeout(30):
        supervisor = await Supervisor(store).__aenter__()
        go = threading.Event()
        handle = await supervisor.start(go.wait, name="waits")
        closing = asyncio.create_task(supervisor.close())
        await until(lambda: handle.run.token.stopped)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        go.set()
        await until(lambda: not supervisor.is_open)


async def test_one_whose_opening_is_cancelled_is_closed_once_it_is_open():
    store = Slow()
    supervisor = Supervisor(store)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), supervisor:
            raise AssertionError("it is not open")
    store.go.set()
    await until(lambda: store.is_closed)
    assert not supervisor.is_open


class Slow(MemoryStore):
    """A store that is opened when it is let go, as a file that another process holds."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.is_closed = False

    def open(self):
        self.go.wait(30)

    def close(self):
        self.is_closed = True
