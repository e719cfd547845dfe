"""``GET /events``: what changes in any run, for lists that are live; and the events of a whole tree."""

import asyncio
import contextlib
import json

import pytest
from fastapi import Request
from tests.waiting import until
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import stoppable
from stoppable import Mode, Status
from stoppable._core.stop import Receipt
from stoppable.errors import StoreError
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, StopRequest
from stoppable.server import Principal, ServerLimits
from stoppable.server.sse import run_changes
from stoppable.server.sse.feeds import message
from stoppable.stores.base import StoreFuture, WorkerInfo

from .serving import DEADLINE, RawStream, asked_for, client_of, ended, over, parsed, served, started


@stoppable.agent
async def waiting():
    """Wait inside a model call for a stop."""
    async with stoppable.boundary("llm", "ask"):
        await stoppable.sleep(600)


@stoppable.agent
async def quick():
    """Return at once."""


@stoppable.agent
async def parent():
    """Start a child that waits."""
    async with stoppable.boundary("tool", "look"):
        pass
    await stoppable.call(waiting)


AGENTS = [waiting, quick, parent]


class Changes:
    """An open stream of changes."""

    def __init__(self, client, response):
        self.client = client
        self._events = parsed(response.aiter_lines())
        self.runs = {}
        self.flights = {}
        self.last_id = None

    async def next(self):
        async with asyncio.timeout(DEADLINE):
            told = await anext(self._events)
        self.last_id = told.get("id", self.last_id)
        if told["event"] == "run":
            self.runs[told["data"]["id"]] = told["data"]
        elif told["event"] == "flight":
            if told["data"]["all"]:
                self.flights = {}
            self.flights |= told["data"]["runs"]
        return told

    async def until(self, is_so):
        while not is_so(self):
            await self.next()


@contextlib.asynccontextmanager
async def changed(service, after=None, **options):
    """Open the stream, up to the snapshot with which it begins."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with client_of(service, **options) as client, client.stream("GET", "/events", headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        stream = Changes(client, response)
        stream.hello = await stream.next()
        assert stream.hello["event"] == "hello"
        stream.missed = []
        while (told := await stream.next())["event"] == "run":
            stream.missed.append(told["data"])
        assert (told["event"], told["data"]["all"]) == ("flight", True)
        yield stream


def is_in(status, run_id):
    return lambda stream: stream.runs.get(run_id, {}).get("status") == status


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return None if request.param == "memory" else f"sqlite:///{tmp_path}/runs.db"


@pytest.mark.parametrize("protocol", [None, HttpToolsProtocol], ids=["our protocol", "any other"])
async def test_a_run_is_told_of_from_its_start_to_its_end_with_what_is_in_flight(store, protocol):
    with served(AGENTS, store=store, protocol=protocol) as service:
        async with changed(service) as stream:
            assert stream.hello["data"]["reset"] is True
            run_id = await asked_for(stream.client, "waiting", labels={"team": "x"})
            await stream.until(is_in("running", run_id))
            assert stream.runs[run_id]["labels"] == {"team": "x"}
            if stream.runs[run_id]["inFlight"] != ["llm:ask"]:
                await stream.until(lambda _: stream.flights.get(run_id) == ["llm:ask"])
            await stream.client.post(f"/runs/{run_id}/stop", json={"mode": "cooperative", "reason": "enough"})
            await stream.until(is_in("stopped", run_id))
            told = stream.runs[run_id]
            assert (told["mode"], told["reason"]["message"], told["inFlight"]) == ("cooperative", "enough", [])
            listed = (await stream.client.get("/runs")).json()["runs"]
            assert listed == [told]


async def test_whoever_opens_a_page_later_is_told_what_is_in_flight_now():
    with served(AGENTS) as service:
        async with client_of(service) as client:
            run_id = await started(client, "waiting")
            async with asyncio.timeout(DEADLINE):
                while (await client.get("/runs")).json()["runs"][0]["inFlight"] != ["llm:ask"]:
                    await asyncio.sleep(0.005)
            async with changed(service) as stream:
                assert stream.flights == {run_id: ["llm:ask"]}
                assert stream.missed == []


async def test_whoever_resumes_gets_what_changed_meanwhile_and_nothing_else(store):
    with served(AGENTS, store=store) as service:
        async with changed(service) as stream:
            before = await asked_for(stream.client, "quick")
            await stream.until(is_in("completed", before))
            place = stream.last_id
        async with client_of(service) as client:
            meanwhile = [await asked_for(client, "quick") for _ in range(3)]
            for run_id in meanwhile:
                await ended(client, run_id)
        async with changed(service, after=place) as stream:
            assert stream.hello["data"]["reset"] is False
            assert [(run["id"], run["status"]) for run in stream.missed] == [(one, "completed") for one in meanwhile]
        async with changed(service, after=stream.last_id) as again:
            assert again.missed == []


async def test_a_place_works_after_a_restart_and_one_of_another_store_begins_anew(tmp_path):
    where = f"sqlite:///{tmp_path}/runs.db"
    with served(AGENTS, store=where) as service:
        async with changed(service) as stream:
            first = await asked_for(stream.client, "quick")
            await stream.until(is_in("completed", first))
            last = await asked_for(stream.client, "waiting")
            await stream.until(is_in("running", last))
    with served(AGENTS, store=where) as service:
        async with changed(service, after=stream.last_id) as again:
            assert [(run["id"], run["status"], run["reason"]["kind"]) for run in again.missed] == [
                (last, "stopped", "shutdown")
            ]
        async with changed(service, after=10**12) as other:
            assert other.hello["data"]["reset"] is True


async def test_runs_of_other_replicas_are_told_too(tmp_path):
    where = f"sqlite:///{tmp_path}/runs.db"
    with served(AGENTS, store=where) as here, served(AGENTS, store=where) as there:
        async with changed(here) as stream, client_of(there) as client:
            run_id = await asked_for(client, "waiting")
            await stream.until(lambda _: stream.flights.get(run_id) == ["llm:ask"] or in_summary(stream, run_id))
            await client.post(f"/runs/{run_id}/stop")
            await stream.until(is_in("stopped", run_id))


def in_summary(stream, run_id):
    return stream.runs.get(run_id, {}).get("inFlight") == ["llm:ask"]


async def test_an_acknowledged_stop_is_told_though_the_run_is_still_in_flight():
    async def stubborn():
        async with stoppable.boundary("llm", "ask"):
            with stoppable.shielded(60):
                await asyncio.sleep(60)

    with served({"stubborn": stubborn}) as service:
        async with changed(service) as stream:
            run_id = await asked_for(stream.client, "stubborn")
            await stream.until(is_in("running", run_id))
            await stream.client.post(f"/runs/{run_id}/stop", json={"grace": 60})
            await stream.until(lambda _: stream.runs[run_id]["acknowledgedAt"] is not None)
            told = stream.runs[run_id]
            assert told["status"] == "stopping"
            after = [(step["rung"], round(step["at"] - told["stopRequestedAt"])) for step in told["ladder"]]
            assert after == [("interrupt", 60), ("cancel", 61), ("kill", 66), ("lost", 68)]
            await stream.client.post(f"/runs/{run_id}/stop", json={"mode": "kill"})
            await stream.until(lambda _: stream.runs[run_id]["endedAt"] is not None)
            assert {step["rung"] for step in stream.runs[run_id]["ladder"]} >= {"interrupt", "cancel"}


async def test_a_worker_elsewhere_that_answers_a_stop_late_is_told_of():
    with served(AGENTS) as service:
        store = service.supervisor.store
        await store.open_worker(WorkerInfo(id="elsewhere"), 600)
        await store.register(RunRecord(id="theirs", name="agent", worker="elsewhere"), "request")
        await store.append("theirs", 1, [Draft(type=EventType.STATUS, data={"status": "running"})])
        await store.append("theirs", 1, [Draft(type=EventType.ENTERED, data={"kind": "llm", "name": "ask"})])
        await store.request_stop(StopRequest(target="theirs"))
        async with changed(service) as stream:
            assert stream.flights == {"theirs": ["llm:ask"]}
            answer = Receipt(run_id="theirs", answer="accepted", status="stopping", acknowledged_at=5.0)
            await store.acknowledge("theirs", 1, Mode.GRACEFUL, answer)
            await stream.until(lambda _: stream.runs.get("theirs", {}).get("acknowledgedAt") == 5.0)
            await store.append("theirs", 1, [Draft(type=EventType.LEFT, data={"kind": "llm", "name": "ask"})])
            await stream.until(lambda _: stream.flights.get("theirs") == [])
            await store.finish("theirs", 1, OutcomeRecord(status=Status.LOST), None)
            await stream.until(is_in("lost", "theirs"))
            await store.finish("theirs", 1, OutcomeRecord(status=Status.STOPPED), None)
            await stream.until(lambda _: stream.runs["theirs"]["endedLate"] is not None)
            assert stream.runs["theirs"]["status"] == "lost"


async def test_nobody_is_told_of_runs_of_another_owner():
    with served(AGENTS, principal=_principal) as service:
        ann, bob = {"headers": {"x-user": "ann"}}, {"headers": {"x-user": "bob"}}
        async with changed(service, **ann) as hers, changed(service, **bob) as his:
            her_run = await asked_for(hers.client, "waiting")
            await hers.until(lambda _: hers.flights.get(her_run) or in_summary(hers, her_run))
            his_run = await asked_for(his.client, "quick")
            await his.until(is_in("completed", his_run))
            assert set(his.runs) == {his_run}
            assert her_run not in his.flights
            async with changed(service, after=0, **bob) as all_of_his:
                assert {run["id"] for run in all_of_his.missed} == {his_run}
                assert all_of_his.flights == {}


async def _principal(request: Request) -> Principal:
    scopes = request.headers.get("x-scopes", "read start stop")
    return Principal(owner=request.headers["x-user"], actor="somebody", scopes=scopes)


async def test_it_needs_the_scope_to_read():
    with served(AGENTS, principal=_principal) as service:
        async with client_of(service, headers={"x-user": "ann", "x-scopes": "stop"}) as client:
            answer = await client.get("/events")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "missing_scope")


async def test_ten_pages_share_one_look_at_the_store():
    with served(AGENTS) as service:
        async with contextlib.AsyncExitStack() as stack:
            pages = [await stack.enter_async_context(changed(service)) for _ in range(10)]
            streams = service.app.state.backend.streams
            assert len(streams) == 10
            assert len(streams._feeds) == 1
            run_id = await asked_for(pages[0].client, "quick")
            for page in pages:
                await page.until(is_in("completed", run_id))


def flooded(service, count, size=100_000):
    """Let the feed find much at once, which no page has room for."""
    feed = next(iter(service.app.state.backend.streams._feeds.values()))

    def flood():
        for _ in range(count):
            feed._append(run_changes.Batch(0, [(None, message("run", {"padding": "x" * size}))]))
        for reader in feed.readers:
            reader.wake()

    feed._loop.call_soon_threadsafe(flood)


async def test_a_page_that_takes_nothing_for_long_is_dropped():
    with served(AGENTS, limits=ServerLimits(slow_seconds=0.5)) as service:
        stream = await RawStream.open(service, None, path="/events", receive_buffer=4096)
        events = stream.events()
        while (await anext(events))["event"] != "flight":
            pass
        flooded(service, 3000, 5_000)
        streams = service.app.state.backend.streams
        await until(lambda: len(streams) == 0)
        told = [one async for one in events]
        await stream.close()
        assert told[-1]["event"] == "dropped"
        assert "id" not in told[-1], "it resumes after the last place that it has"


async def test_a_page_that_is_too_far_behind_is_dropped(monkeypatch):
    """What it missed is in the store, and not in our memory."""
    monkeypatch.setattr(run_changes, "_BATCH_BYTES", 1_000_000)
    with served(AGENTS) as service:
        stream = await RawStream.open(service, None, path="/events")
        told = stream.events()
        while (await anext(told))["event"] != "flight":
            pass
        flooded(service, 150)
        assert [one["event"] async for one in told][-1] == "dropped"
        await stream.close()


async def test_a_store_that_does_not_answer_for_a_while_loses_no_change(caplog):
    def refuse(*_, **__):
        def fail():
            raise StoreError("it does not answer")

        return StoreFuture.of(fail)

    with served(AGENTS) as service:
        async with changed(service) as stream:
            store = service.supervisor.store
            store.tail = refuse
            try:
                run_id = await asked_for(stream.client, "quick")
                await until(lambda: "changes of runs cannot be sent for now" in caplog.text)
            finally:
                del store.tail
            await stream.until(is_in("completed", run_id))


async def test_a_page_that_missed_too_much_begins_anew(monkeypatch):
    monkeypatch.setattr(run_changes, "_REPLAYED_RUNS", 2)
    with served(AGENTS) as service:
        async with client_of(service) as client:
            for number in range(3):
                await ended(client, await asked_for(client, "quick"))
                async with changed(service, after=0) as stream:
                    assert stream.hello["data"]["reset"] is (number == 2)
                    assert len(stream.missed) == (0 if number == 2 else number + 1)


async def test_a_server_that_shuts_down_says_so():
    with served(AGENTS) as service:
        async with changed(service) as stream:
            service.stop()
            while (told := await stream.next())["event"] != "shutdown":
                pass
            assert "resume" in told["data"]["message"]


async def test_without_changes_there_are_comments():
    with served(AGENTS, limits=ServerLimits(heartbeat=0.05)) as service:
        async with client_of(service) as client, client.stream("GET", "/events") as response:
            async with asyncio.timeout(DEADLINE):
                comments = 0
                async for line in response.aiter_lines():
                    comments += line == ":"
                    if comments == 3:
                        break


# Trees


async def tree_events(client, run_id, after=None):
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    async with client.stream("GET", f"/runs/{run_id}/events?tree=true", headers=headers) as response:
        assert response.status_code == 200
        async for told in parsed(response.aiter_lines()):
            yield told


async def test_the_events_of_a_tree_are_told_as_they_come_until_the_run_is_over(store):
    with served(AGENTS, store=store) as service:
        async with client_of(service) as client:
            other = await started(client, "waiting")
            run_id = await started(client, "parent")
            told = []
            async with asyncio.timeout(DEADLINE):
                async for one in tree_events(client, run_id):
                    told.append(one)
                    if one["event"] == "entered" and one["data"]["data"]["kind"] == "llm":
                        await client.post(f"/runs/{run_id}/stop")
            ids = [int(one["id"]) for one in told]
            assert ids == sorted(set(ids))
            assert (told[-1]["event"], told[-1]["data"]["runId"]) == ("done", run_id)
            tree = (await client.get(f"/runs/{run_id}/tree")).json()["runs"]
            logs = {record["id"]: [] for record in tree}
            assert len(logs) == 2
            for one in told:
                logs[one["data"]["runId"]].append(one["data"]["seq"])
            assert all(log == list(range(1, len(log) + 1)) for log in logs.values())
            assert other not in logs
            middle = ids[len(ids) // 2]
            rest = [one async for one in tree_events(client, run_id, after=middle)]
            assert rest == [one for one in told if int(one["id"]) > middle]
            end = await client.get(f"/runs/{run_id}/events?tree=true", headers={"Last-Event-ID": str(ids[-1])})
            assert end.status_code == 204


async def test_a_tree_of_another_owner_is_not_there():
    with served(AGENTS, principal=_principal) as service:
        async with client_of(service, headers={"x-user": "ann"}) as client:
            run_id = await asked_for(client, "quick")
            await over(client, run_id)
            answer = await client.get(f"/runs/{run_id}/events?tree=true", headers={"x-user": "bob"})
            assert (answer.status_code, json.loads(answer.text)["error"]["code"]) == (404, "run_not_found")
