"""Readers that never read cost little memory, and the store is read once for all of them."""

import asyncio
import contextlib

import pytest
from fastapi import Header
from tests.waiting import until

import stoppable
from stoppable.server import Principal, ServerLimits
from stoppable.server.sse.feeds import SEND_BYTES

from .serving import RawStream, client_of, events, served, started

LARGE = 400_000
EVENTS = 12


async def by_header(x_user: str = Header()) -> Principal:
    return Principal(owner=x_user, actor=x_user)


async def large():
    """Emit large events, and wait for a stop."""
    for n in range(EVENTS):
        stoppable.emit("step", n=n, text="x" * LARGE)
    await stoppable.sleep(600)


async def small():
    """Emit many small events, and wait for a stop."""
    for n in range(2000):
        stoppable.emit("step", n=n, text="x" * 1000)
    await stoppable.sleep(600)


@contextlib.asynccontextmanager
async def unread(service, run_id, places, headers=()):
    """Open a stream after each place, and read nothing of it but its head."""
    async with contextlib.AsyncExitStack() as stack:
        opened = []
        for place in places:
            opened.append(await RawStream.open(service, run_id, place, receive_buffer=4096, headers=headers))
            stack.push_async_callback(opened[-1].drop)
        yield opened


async def emitted(client, run_id, count=EVENTS):
    """Wait until the log has so many events of the agent, after the one that it runs."""
    async with asyncio.timeout(30):
        while (await client.get(f"/runs/{run_id}")).json()["lastEvent"] <= count:
            await asyncio.sleep(0.01)


def is_stuck(service, count):
    """Return a predicate: so many readers wait for their clients."""
    connections = service._server.server_state.connections
    return lambda: sum(one.flow.write_paused for one in list(connections)) == count


async def test_a_log_is_read_once_for_readers_at_the_same_place_and_little_is_buffered_for_each(monkeypatch):
    with served([large]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "large")
            await emitted(client, run_id)
            reads = []
            read = service.supervisor.store.read

            def counted(*args):
                reads.append(args)
                return read(*args)

            monkeypatch.setattr(service.supervisor.store, "read", counted)
            async with unread(service, run_id, [0] * 40):
                await until(is_stuck(service, 40))
                streams = service.app.state.backend.streams
                held = [one.transport.get_write_buffer_size() for one in service._server.server_state.connections]
                assert max(held) <= 2 * SEND_BYTES
                assert len(streams.large) < 2 * LARGE, "they share the event"
                assert len(reads) < 10, "not once for each"
            await until(lambda: not len(streams))
            assert not len(streams.large)


async def test_large_events_that_nobody_takes_are_bounded_and_a_client_that_reads_gets_all():
    limits = ServerLimits(stream_bytes=4 * LARGE)
    with served([large], limits=limits) as service:
        async with client_of(service) as client:
            run_id = await started(client, "large")
            await emitted(client, run_id)
            streams = service.app.state.backend.streams
            async with unread(service, run_id, range(1, EVENTS)):
                await until(is_stuck(service, 3))  # the others were dropped: three large events fit
                assert len(streams.large) <= 4 * LARGE
                seen = []
                async for one in events(client, run_id):
                    seen.append(int(one["id"]))
                    if len(seen) == EVENTS:
                        break
                assert seen == list(range(1, EVENTS + 1))


async def test_the_unread_events_of_one_owner_cost_no_other_owner_a_reader():
    limits = ServerLimits(owner_stream_bytes=2 * LARGE + LARGE // 2)
    with served([large], principal=by_header, limits=limits) as service:
        runs = {}
        async with contextlib.AsyncExitStack() as stack:
            for user in ("ada", "eve"):
                headers = {"X-User": user}
                client = await stack.enter_async_context(client_of(service, headers=headers))
                runs[user] = await started(client, "large")
                await emitted(client, runs[user])
            await stack.enter_async_context(unread(service, runs["ada"], [1, 2], {"X-User": "ada"}))
            await until(is_stuck(service, 2))
            await stack.enter_async_context(unread(service, runs["eve"], range(1, 9), {"X-User": "eve"}))
            owners = service.app.state.backend.streams._owners
            await until(lambda: owners["eve"] == 2)
            assert owners["ada"] == 2


@pytest.mark.parametrize("agent", ["large", "small"])
async def test_a_client_that_is_dropped_in_the_middle_resumes_without_gap_or_duplicate(agent, monkeypatch):
    with served([large, small], limits=ServerLimits(slow_seconds=0.3)) as service:
        async with client_of(service) as client:
            run_id = await started(client, agent)
            count = EVENTS if agent == "large" else 2000
            await emitted(client, run_id, count)
            streams, dropped = service.app.state.backend.streams, []
            leave = streams.leave
            monkeypatch.setattr(streams, "leave", lambda view, reader: dropped.append(leave(view, reader)))
            stream = await RawStream.open(service, run_id, receive_buffer=4096)
            await until(lambda: dropped)
            found = [one async for one in stream.events() if one["event"] != "dropped"]
            await stream.close()
            seen = [int(one["id"]) for one in found]
            assert len(seen) < count
            assert seen == list(range(1, len(seen) + 1)), "an event that is not complete does not count"
            async for one in events(client, run_id, after=len(seen)):
                seen.append(int(one["id"]))
                if len(seen) == count:
                    break
            assert seen == list(range(1, count + 1))
