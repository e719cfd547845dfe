"""Closing ends what runs, tells the store so, and never says of a run that is alive that it is dead."""

import asyncio
import math
import threading

import pytest
from tests.supervisor.test_lease import Faulty
from tests.waiting import until

import stoppable
from stoppable import Policy, Supervisor, sync
from stoppable.errors import StoppableError, StoreError
from stoppable.supervisor import core

from .kept_agents import forever


@pytest.fixture
def file(tmp_path):
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def cleans_up(seconds):
    try:
        await forever()
    finally:
        with stoppable.shielded(seconds):
            await asyncio.sleep(seconds)


async def test_closing_is_bounded_by_the_policy_though_a_run_was_stopped_with_a_longer_grace(file):
    """The stop of the shutdown has the same mode and changes nothing, so the grace of the first one would hold."""
    quick = Policy(grace=0.1, interrupt=0, cancel=5, kill=1)
    async with Supervisor(file) as supervisor:
        handle = await supervisor.start(asyncio.sleep, 3600, policy=quick)
        await until(lambda: handle.status == "running")
        await handle.stop(grace=3600)
    assert (handle.status, handle.run.outcome.rung) == ("stopped", "cancel")
    async with Supervisor(file) as after:
        record = await after.get(handle.id)
        assert (record.status, record.outcome.clean) == ("stopped", None)  # the cancel hit a bare await


async def test_a_start_is_refused_once_the_supervisor_shuts_down(file):
    async with Supervisor(file) as supervisor:
        handle = await supervisor.start(cleans_up, 0.3)
        await until(lambda: handle.status == "running")
        closing = asyncio.create_task(supervisor.close())
        await until(lambda: handle.run.token.stopped)
        with pytest.raises(StoppableError, match=r"shutting down and takes no new runs"):
            await supervisor.start(forever)
        with pytest.raises(StoppableError, match=r"shutting down"):
            async with supervisor.open_run("block"):
                raise AssertionError("its body never runs")
        await closing
    async with Supervisor(file) as after:
        assert [record.status for record in (await after.list()).runs] == ["stopped"]


async def test_a_start_that_is_being_registered_when_the_supervisor_closes_is_stopped_by_it(file):
    for number in range(5):
        async with Supervisor(file) as supervisor:
            starting = asyncio.create_task(supervisor.start(forever, run_id=f"late-{number}"))
            await asyncio.sleep(0)
        handle = await starting
        assert (handle.run.outcome.status, handle.run.outcome.reason.kind) == ("stopped", "shutdown")
        async with Supervisor(file) as after:
            assert (await after.get(handle.id)).status == "stopped"


def test_a_start_is_refused_on_a_thread_too(file):
    with sync.Supervisor(file) as supervisor:
        supervisor.close()
        with pytest.raises(StoppableError, match=r"shutting down and takes no new runs"):
            supervisor.start(forever)


async def test_a_run_that_is_alive_when_the_supervisor_has_closed_is_not_proven_dead(file, monkeypatch):
    """Its lease runs out: it becomes lost, and not stopped."""
    monkeypatch.setattr(core, "SHUTDOWN_MARGIN", 0.1)
    go = threading.Event()

    def hangs():
        go.wait(60)

    async with Supervisor(file, ttl=3) as supervisor:
        handle = await supervisor.start(hangs)
        await until(lambda: handle.status == "running")
        monkeypatch.setattr(core.SupervisorCore, "shut_down", lambda *_: 0.0)
    assert handle.run.outcome is None
    waiting = asyncio.create_task(handle.outcome())
    async with Supervisor(file, ttl=3) as after:
        outcome = await after.handle(handle.id).outcome()
        assert outcome.status == "lost"
    go.set()
    with pytest.raises(StoreError, match=r"its end was not stored: the supervisor was closed"):
        await waiting


async def test_nobody_waits_for_an_end_that_cannot_be_kept_any_more(store, monkeypatch):
    monkeypatch.setattr(core, "SHUTDOWN_MARGIN", 0.1)
    faulty = Faulty(store)
    async with asyncio.timeout(30):
        async with Supervisor(faulty) as supervisor:
            handle = await supervisor.start(forever)
            await until(lambda: handle.status == "running")
            waiting = asyncio.create_task(handle.outcome())
            faulty.failing = {"finish"}
        for outcome in (waiting, handle.outcome()):
            with pytest.raises(StoreError, match=r"its end was not stored: the supervisor was closed"):
                await outcome


def test_a_stop_without_an_end_does_not_break_the_shutdown(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(sleeps, policy=Policy(grace=31_536_000))
        inner = supervisor._core
        inner.shut_down()
        assert inner.wait_for_end(1e10)
        assert inner.wait_for_end(math.inf)
    assert handle.status == "stopped"


def sleeps():
    sync.sleep(3600)
