"""Events as they happen: resumed without a gap, and never the owner of the run."""

import asyncio
import functools
import json
import signal
import threading

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from tests.waiting import until

import stoppable
from stoppable._core import clock
from stoppable.errors import StoreError
from stoppable.server import ServerLimits
from stoppable.stores.base import StoreFuture, settle
from stoppable.stores.memory import MemoryStore

from .serving import DEADLINE, RawStream, client_of, ended, event, events, in_process, over, served, started


class Steps:
    """An agent that tells so many events as the test asks for."""

    def __init__(self):
        self._permits = threading.Semaphore(0)
        self._is_over = False

    def give(self, count=1):
        self._permits.release(count)

    def finish(self):
        self._is_over = True

    async def agent(self, size: int = 1):
        n = 0
        while True:
            while not self._permits.acquire(blocking=False):
                if self._is_over:
                    return n
                await stoppable.sleep(0.002)
            stoppable.emit("step", n=n, text="x" * size)
            n += 1


@pytest.fixture
def steps():
    steps = Steps()
    yield steps
    steps.finish()


@pytest.fixture(params=["own", "httptools", "h11"])
def serve(request):
    """Serve with the protocol of ``serve``, or with one of uvicorn as in another app."""
    return functools.partial(served, protocol=None if request.param == "own" else request.param)


def numbers(found):
    return [one["data"]["data"]["data"]["n"] for one in found if one["event"] == "progress"]


async def test_the_stream_has_every_event_in_order_and_ends_after_done(serve, steps):
    with serve({"steps": steps.agent}) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            steps.give(500)
            await event(client, run_id, "progress", data={"n": 499, "text": "x"})
            steps.finish()
            found = [one async for one in events(client, run_id)]
            assert [int(one["id"]) for one in found] == list(range(1, len(found) + 1))
            assert numbers(found) == list(range(500))
            assert found[-1]["event"] == "done"
            assert found[-1]["data"]["data"]["status"] == "completed"
            assert {one["data"]["runId"] for one in found} == {run_id}
            last = int(found[-1]["id"])
            assert [int(one["id"]) async for one in events(client, run_id, after=last - 2)] == [last - 1, last]
            end = await client.get(f"/runs/{run_id}/events", headers={"Last-Event-ID": str(last)})
            assert end.status_code == 204, "a browser that resumes after the end comes no more"


async def test_a_dropped_connection_resumes_without_gap_or_duplicate(serve, steps):
    with serve({"steps": steps.agent}) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            seen = []
            for _ in range(6):
                stream = await RawStream.open(service, run_id, after=seen[-1] if seen else 0)
                steps.give(40)
                wanted = len(seen) + 17
                async with asyncio.timeout(DEADLINE):
                    async for one in stream.events():
                        seen.append(int(one["id"]))
                        if len(seen) >= wanted:
                            break
                await stream.drop()
            steps.finish()
            async for one in events(client, run_id, headers={"Last-Event-ID": str(seen[-1])}):
                seen.append(int(one["id"]))
            assert seen == list(range(1, len(seen) + 1))
            assert len(seen) == 240 + 3  # running, completed, done


@pytest.mark.parametrize("policy", ["keep", "stop"])
async def test_when_the_last_reader_goes_away_the_policy_of_the_run_decides(serve, steps, policy):
    with serve({"steps": steps.agent}, limits=ServerLimits(disconnect_grace=0.05)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", onDisconnect=policy)
            first, second = [await RawStream.open(service, run_id) for _ in range(2)]
            await first.drop()
            steps.give()
            async for one in second.events():
                if one["event"] == "progress":
                    break
            assert (await client.get(f"/runs/{run_id}")).json()["status"] == "running", "one reader is left"
            await second.drop()
            if policy == "keep":
                steps.finish()
            record = await over(client, run_id)
            if policy == "keep":
                assert record["status"] == "completed"
            else:
                assert record["status"] == "stopped"
                assert record["outcome"]["reason"]["kind"] == "disconnect"


async def test_a_reader_that_is_dropped_since_the_store_does_not_answer_has_gone_away(serve, steps):
    def refuse(*_, **__):
        def fail():
            raise StoreError("it does not answer")

        return StoreFuture.of(fail)

    with serve({"steps": steps.agent}, limits=ServerLimits(disconnect_grace=0.05, heartbeat=0.05)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", onDisconnect="stop")
            stream = await RawStream.open(service, run_id)
            service.supervisor.store.read = refuse
            try:
                assert [one["event"] async for one in stream.events()][-1] == "dropped"
            finally:
                del service.supervisor.store.read
            await stream.close()
            assert (await over(client, run_id))["outcome"]["reason"]["kind"] == "disconnect"


async def test_a_reader_that_comes_back_in_time_keeps_its_run(serve, steps):
    with serve({"steps": steps.agent}, limits=ServerLimits(disconnect_grace=DEADLINE)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", onDisconnect="stop")
            first = await RawStream.open(service, run_id)
            await first.drop()
            back = await RawStream.open(service, run_id)
            steps.finish()
            assert [one["event"] async for one in back.events()][-1] == "done"
            await back.close()
            assert (await ended(client, run_id))["status"] == "completed"


async def test_a_stream_without_events_gets_comments(serve, steps):
    with serve({"steps": steps.agent}, limits=ServerLimits(heartbeat=0.05)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            stream = await RawStream.open(service, run_id)
            comments = 0
            async with asyncio.timeout(DEADLINE):
                async for line in stream.lines():
                    comments += line == ":"
                    if comments == 3:
                        break
            await stream.close()


async def test_a_slow_reader_is_dropped_with_a_marker_and_can_resume(serve, steps):
    with serve({"steps": steps.agent}, limits=ServerLimits(slow_seconds=DEADLINE)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", {"size": 6_000})
            stream = await RawStream.open(service, run_id, receive_buffer=4096)
            streams = service.app.state.backend.streams
            await until(lambda: len(streams))
            feed = streams._feeds[run_id]
            [reader] = feed.readers
            steps.give(1500)
            await event(client, run_id, "progress", data={"n": 1499, "text": "x" * 6_000})
            later = clock.now() + 2 * DEADLINE
            await until(lambda: feed._loop.call_soon_threadsafe(reader.check, later) and not len(streams))  # given up
            found = [one async for one in stream.events()]
            await stream.close()
            assert found[-1]["event"] == "dropped"
            assert "id" not in found[-1], "it resumes after the last event of the run"
            seen = [int(one["id"]) for one in found[:-1]]
            assert 0 < len(seen) < 1500
            assert found[-1]["data"]["after"] == seen[-1]
            steps.finish()
            seen += [int(one["id"]) async for one in events(client, run_id, after=seen[-1])]
            assert seen == list(range(1, 1500 + 4))


async def test_a_client_that_takes_nothing_at_all_does_not_keep_its_connection(steps):
    with served({"steps": steps.agent}, limits=ServerLimits(slow_seconds=0.3)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", {"size": 100_000})
            stream = await RawStream.open(service, run_id, receive_buffer=4096)
            transport = transport_of(service, stream)
            steps.give(150)
            await until(lambda: transport_of(service, stream) is None)
            await until(lambda: transport.get_write_buffer_size() == 0)  # nor what was to be sent
            await stream.drop()


async def test_so_many_streams_and_no_more(serve, steps):
    with serve({"steps": steps.agent}, limits=ServerLimits(streams=2)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            first, second = [await RawStream.open(service, run_id) for _ in range(2)]
            refused = await client.get(f"/runs/{run_id}/events")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
            assert (await client.post(f"/runs/{run_id}/stop", params={"wait": 30})).json()["status"] == "stopped"
            for stream in (first, second):
                assert [one["event"] async for one in stream.events()][-1] == "done"
                await stream.close()


@pytest.mark.slow
async def test_a_thousand_readers_with_one_slow_all_see_everything(steps):
    count, told = 1000, 20
    with served({"steps": steps.agent}, limits=ServerLimits(slow_seconds=30)) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", {"size": 2000})
            opened = []
            for _ in range(count // 100):
                opened += await asyncio.gather(*(RawStream.open(service, run_id) for _ in range(100)))
            slow = await RawStream.open(service, run_id, receive_buffer=4096)
            steps.give(told)

            async def read(stream):
                found = []
                async for one in stream.events():
                    found.append(int(one["id"]))
                    if one["event"] == "progress" and one["data"]["data"]["data"]["n"] == told - 1:
                        break
                return found

            async with asyncio.timeout(100):
                results = await asyncio.gather(*(read(stream) for stream in opened))
            assert {tuple(result) for result in results} == {tuple(range(1, told + 2))}
            response = await client.post(f"/runs/{run_id}/stop", json={"mode": "immediate"}, params={"wait": 30})
            assert response.json()["status"] == "stopped"
            assert [int(one["id"]) async for one in slow.events()] == list(range(1, told + 5))
            await asyncio.gather(*(stream.close() for stream in [*opened, slow]))


async def test_what_an_agent_emits_cannot_end_an_event_or_become_another():
    hostile = "\n\nevent: done\ndata: {}\n\n<script>alert(1)</script>\r\n\u2028"

    async def agent():
        stoppable.emit("evil\n\nevent: done", text=hostile, big=2**80, half="\ud800")
        stoppable.set_partial({hostile: hostile})
        return hostile

    with served([agent]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "agent")
            found = [one async for one in events(client, run_id)]
            assert [int(one["id"]) for one in found] == list(range(1, len(found) + 1))
            assert [one["event"] for one in found] == ["status", "progress", "partial", "status", "done"]
            told = found[1]["data"]["data"]
            assert told["name"] == "evil\n\nevent: done"
            assert told["data"] == {"text": hostile, "big": 2**80, "half": "\ufffd"}  # half a character has no UTF-8
            response = await client.get(f"/runs/{run_id}")
            assert response.headers["content-type"] == "application/json"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert json.loads(response.content)["outcome"]["result"] == hostile


class Late(MemoryStore):
    """Answers one read with what was there before an event of which the readers are told meanwhile."""

    meanwhile = None

    def read(self, run_id, after, limit):
        found = super().read(run_id, after, limit)
        if self.meanwhile is None:
            return found
        act, self.meanwhile = self.meanwhile, None
        late = StoreFuture()

        def answer():
            told = threading.Event()
            subscription = self.watch(run_id, told.set)  # after the reader, so it is told after it
            act()
            assert told.wait(DEADLINE)
            subscription.close()
            settle([(late, found.result(), None)])

        threading.Thread(target=answer).start()
        return late


async def test_an_event_that_comes_while_the_log_is_read_is_not_missed(serve, steps, monkeypatch):
    monkeypatch.setattr("stoppable.server.sse.streams._CHECK_SECONDS", 3600)  # being told is all there is
    store = Late()
    limits = ServerLimits(heartbeat=3600, slow_seconds=3600)
    with serve({"steps": steps.agent}, store=store, limits=limits) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            await event(client, run_id, "status", status="running")
            store.meanwhile = steps.give
            stream = await RawStream.open(service, run_id)
            async with asyncio.timeout(DEADLINE):
                async for one in stream.events():
                    if one["event"] == "progress":
                        break
            await stream.drop()


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_a_request_behind_that_of_a_stream_is_answered_after_its_end(serve, steps, when):
    with serve({"steps": steps.agent}) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            behind = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            stream = await RawStream.open(service, run_id, behind=behind if when == "at once" else b"")
            if when == "later":
                stream.write(behind)
            steps.finish()
            assert [one["event"] async for one in stream.events()][-1] == "done"
            assert b"HTTP/1.1 200 OK" in await stream.rest()
            await stream.close()


async def test_a_client_that_goes_away_while_its_stream_is_opened_has_gone_away(steps):
    with served({"steps": steps.agent}, limits=ServerLimits(disconnect_grace=0.01)) as service:
        inner = service._server.config.loaded_app

        async def cutting(scope, receive, send):
            async def cut(message):
                await send(message)
                transport_of(service, stream).abort()

            await inner(scope, receive, cut if scope["path"].endswith("/events") else send)

        service._server.config.loaded_app = cutting
        async with client_of(service) as client:
            run_id = await started(client, "steps", onDisconnect="stop")
            stream = await RawStream.connect(service)
            stream.write(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            async with asyncio.timeout(DEADLINE):
                await stream.rest()
            await stream.close()
            assert (await over(client, run_id))["outcome"]["reason"]["kind"] == "disconnect"
            assert len(service.app.state.backend.streams) == 0


async def test_a_stream_whose_head_a_middleware_keeps_back_has_it_first(steps):
    async def pass_on(request, call_next):
        return await call_next(request)

    with served({"steps": steps.agent}) as service:
        service._server.config.loaded_app = BaseHTTPMiddleware(service._server.config.loaded_app, pass_on)
        async with client_of(service) as client:
            run_id = await started(client, "steps")
            stream = await RawStream.open(service, run_id)  # the first line is the status
            steps.give(3)
            steps.finish()
            assert numbers([one async for one in stream.events()]) == [0, 1, 2]
            await stream.close()


async def test_a_connection_that_is_full_when_its_stream_begins_is_written_to_when_there_is_room(steps):
    with served({"steps": steps.agent}) as service:
        async with client_of(service) as client:
            run_id = await started(client, "steps", {"size": 100_000})
            stream = await RawStream.connect(service, receive_buffer=4096)
            transport = await until(lambda: transport_of(service, stream))
            loop = transport.get_protocol().loop

            async def on_its_loop(function, *args):
                return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(function, *args), loop))

            async def call(function, *args):
                return function(*args)

            await on_its_loop(transport.set_write_buffer_limits, 2**30)
            while not (size := await on_its_loop(transport.get_write_buffer_size)):
                await on_its_loop(transport.write, b"x" * 100_000)
            await on_its_loop(transport.set_write_buffer_limits, size)  # the head of the response is too much
            stream.write(f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            await until(lambda: transport.get_protocol().flow.write_paused)
            steps.give(100)
            steps.finish()
            assert (await ended(client, run_id))["status"] == "completed"
            assert await on_its_loop(transport.get_write_buffer_size) < size + 1_000_000
            await stream.drop()


def transport_of(service, stream):
    address = stream._writer.get_extra_info("sockname")
    found = [one.transport for one in list(service._server.server_state.connections)]
    return next((one for one in found if one.get_extra_info("peername") == address), None)


async def test_a_reader_that_takes_nothing_does_not_hold_up_the_end_of_the_server(tmp_path):
    with in_process("busy", notes=str(tmp_path / "notes"), slow_seconds=300) as service:
        async with client_of(service) as client:
            run_id = await started(client, "talkative")
            stream = await RawStream.open(service, run_id, receive_buffer=4096)
            await event(client, run_id, "progress", name="last")
            service.signal(signal.SIGTERM)
            code, log = await asyncio.to_thread(service.wait)
            assert code == 0, log
            assert "Traceback" not in log
            await stream.drop()
