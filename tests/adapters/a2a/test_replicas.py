"""Several replicas that share their stores, and the end of a server process."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from a2a.server.cluster.database_task_store import VersionedDatabaseTaskStore
from a2a.server.context import ServerCallContext
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore
from a2a.types import SubscribeToTaskRequest
from sqlalchemy.ext.asyncio import create_async_engine

import stoppable

from .executors import Asks, Scripted
from .serving import SECONDS, Stream, served, state_of
from .test_remote import Caller, calling

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.filterwarnings("ignore:A VersionedTaskStore was configured without")


@contextlib.asynccontextmanager
async def task_store(kind, folder):
    if kind is InMemoryTaskStore:
        yield InMemoryTaskStore()
        return
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/tasks.db")
    store = kind(engine)
    await store.initialize()
    try:
        yield store
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def replicas(kind, folder, make=Scripted, *, is_plain=False):
    """Two servers with supervisors of their own on one file of runs, and one task store."""
    runs = f"sqlite:///{folder}/runs.db"
    async with task_store(kind, folder) as store, stoppable.Supervisor(runs) as one, stoppable.Supervisor(runs) as two:
        inner, by = make(), (None, None) if is_plain else (one, two)
        async with served(inner, by[0], store=store) as here, served(make(), by[1], store=store) as there:
            yield inner, here, there


@pytest.mark.parametrize("kind", [InMemoryTaskStore, DatabaseTaskStore, VersionedDatabaseTaskStore])
async def test_a_cancel_at_the_other_replica_stops_a_quiet_run(tmp_path, kind):
    async with replicas(kind, tmp_path) as (inner, here, there):
        stream = here.stream()
        task_id = await stream.started()
        async with asyncio.timeout(SECONDS):
            await inner.working.wait()
            assert state_of(await there.cancel(task_id)) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        assert await here.state(task_id) == "CANCELED"
    assert inner.effects == 0


@pytest.mark.parametrize("kind", [InMemoryTaskStore, VersionedDatabaseTaskStore])
async def test_a_task_that_waits_for_a_message_is_canceled_from_the_other_replica(tmp_path, kind):
    async with replicas(kind, tmp_path, Asks) as (_, here, there):
        stream = here.stream()
        assert (await stream.ended())[-1] == "INPUT_REQUIRED"
        assert state_of(await there.cancel(stream.task_id)) == "CANCELED"
        assert await here.state(stream.task_id) == "CANCELED"


@pytest.mark.parametrize("kind", [InMemoryTaskStore, DatabaseTaskStore, VersionedDatabaseTaskStore])
async def test_a_stream_of_a_waiting_task_ends_when_the_other_replica_cancels_it(tmp_path, kind):
    async with replicas(kind, tmp_path, Asks) as (_, here, there):
        stream = here.stream()
        await stream.ended()
        again = Stream(here.client.subscribe(SubscribeToTaskRequest(id=stream.task_id)))
        await again.started()
        assert state_of(await there.cancel(stream.task_id)) == "CANCELED"
        assert [state for state in await again.ended() if state in {"CANCELED", "COMPLETED"}] == ["CANCELED"]


async def test_a_stream_at_the_replica_that_does_not_execute_the_task_ends_with_it(tmp_path):
    async with replicas(DatabaseTaskStore, tmp_path) as (inner, here, there):
        stream = here.stream()
        again = Stream(there.client.subscribe(SubscribeToTaskRequest(id=await stream.started())))
        await again.started()
        inner.go.set()
        assert (await stream.ended())[-1] == (await again.ended())[-1] == "COMPLETED"


async def test_eight_cancels_at_both_replicas_are_eight_times_canceled(tmp_path):
    async with replicas(VersionedDatabaseTaskStore, tmp_path) as (inner, here, there):
        for _ in range(5):
            inner.working.clear()
            stream = here.stream()
            task_id = await stream.started()
            await inner.working.wait()
            tasks = await asyncio.gather(*(server.cancel(task_id) for server in (here, there) * 4))
            assert [state_of(task) for task in tasks] == ["CANCELED"] * 8
            assert (await stream.ended())[-1] == "CANCELED"


@contextlib.contextmanager
def process_in(folder, *options):
    """Run a server that keeps its tasks in a folder; its address and its process."""
    command = [sys.executable, "-m", "tests.adapters.a2a.remote_service", str(folder), *options]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip(), server
    finally:
        server.kill()
        server.communicate()


async def task_after_sigterm(tmp_path, *how):
    """Return what is stored of a task whose server was terminated."""
    with process_in(tmp_path, *how) as (url, server):
        async with calling(url, is_wrapped=False) as remote:
            caller = Caller(remote)
            asking = asyncio.create_task(caller())
            await caller.working()
            os.kill(server.pid, signal.SIGTERM)
            await asyncio.to_thread(server.wait, SECONDS)
            await asyncio.wait({asking})
            asking.exception()
    async with task_store(DatabaseTaskStore, tmp_path) as store:
        return await store.get(caller.heard[0].task.id, ServerCallContext())


async def test_sigterm_leaves_no_task_working(tmp_path):
    task = await task_after_sigterm(tmp_path)
    assert state_of(task) == "CANCELED"
    assert task.metadata["stoppable"]["kind"] == "shutdown"
