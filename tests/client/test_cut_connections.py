"""Connections that break: nothing is done twice, and no event is missing or told twice."""

import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoppable
from stoppable.client import AsyncClient, Client, NotAllowed, ServerError, ServerUnreachable
from stoppable.client.sse_cursor import EventParser, SseDecoder
from stoppable.errors import StoppableError, StoreError
from stoppable.records import EventType
from stoppable.testing import FakeClock

from .cutting_proxy import CuttingProxy


def test_a_start_whose_answer_is_lost_is_the_same_run(connect, server, unique):
    with CuttingProxy(server, 0, 10) as proxy:
        handle = connect(proxy.url).start("echo", 1, labels={"lost": unique})
        assert proxy.connections == 3
        assert [run.id for run in connect(server).list(labels={"lost": unique}).runs] == [handle.id]


def test_a_stop_whose_answer_is_lost_is_the_same_stop(connect, server):
    direct = connect(server)
    run_id = direct.start("waiting").id
    with CuttingProxy(server, 0) as proxy:
        receipt = connect(proxy.url).stop(run_id, reason="once", wait=30)
    assert (receipt.status, receipt.reason.message) == ("stopped", "once")


def test_a_bulk_stop_whose_answer_is_lost_gets_the_first_answer(connect, server, unique):
    direct = connect(server)
    direct.start("waiting", owner=unique)
    with CuttingProxy(server, 0) as proxy:
        stopped = connect(proxy.url).stop_where(owner=unique, hold=True)
    assert [one.answer for one in stopped] == ["accepted"]
    assert [hold.selector.owner for hold in direct.holds()].count(unique) == 1
    with CuttingProxy(server, 0) as proxy:
        connect(proxy.url).release(stopped.hold.id)
    assert unique not in [hold.selector.owner for hold in direct.holds()]


def test_events_resume_without_gap_or_duplicate(connect, server):
    direct = connect(server)
    run_id = direct.start("talker", {"count": 40}).id
    whole = list(direct.events(run_id))
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert whole[-1].type is EventType.DONE
    with CuttingProxy(server, *[100, 350, 0, 1000, 777, 1200, 401]) as proxy:
        assert list(connect(proxy.url).events(run_id)) == whole
        assert proxy.connections == 8


def test_live_events_resume_too(connect, server):
    with CuttingProxy(server, None, 400, 600, 800) as proxy:
        with connect(proxy.url).run("talker", {"count": 30, "pause": 0.01}) as run:
            assert [event.seq for event in run.events()] == list(range(1, run.record().last_event + 1))


def test_a_start_that_may_have_been_heard_is_taken_back(connect, server, unique):
    client = connect(server)
    with CuttingProxy(server, 0) as proxy:
        lonely = connect(proxy.url, retry_seconds=0.0)
        with pytest.raises(ServerUnreachable), lonely.run("waiting", run_id=unique):
            pass
    assert client.stop(unique, wait=30).status == "stopped"
    assert client.get(unique).stop.reason.message.startswith("its block was left by ServerUnreachable")


async def test_a_cancelled_block_stops_its_run(server):
    async with AsyncClient(server) as client:
        inside = asyncio.Event()
        ids = []

        async def work():
            async with client.run("waiting") as run:
                ids.append(run.id)
                inside.set()
                await run.outcome()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        receipt = await client.stop(ids[0], wait=30)
        assert (receipt.status, receipt.reason.message) == ("stopped", "its block was left by CancelledError")


def test_a_run_that_cannot_be_stopped_is_noted_on_the_error(server, monkeypatch):
    monkeypatch.setattr("stoppable.client._sync.calls.STOP_ON_EXIT_SECONDS", 0.1)
    monkeypatch.setattr("stoppable.client._async.calls.STOP_ON_EXIT_SECONDS", 0.1)
    with CuttingProxy(server) as proxy:
        with Client(proxy.url) as client, pytest.raises(ZeroDivisionError) as caught, client.run("echo"):
            proxy.is_gone.set()
            raise ZeroDivisionError
    assert "could not be stopped" in caught.value.__notes__[0]


# Answers, without a network


def answering(*responses):
    """Return a client whose server gives these answers in turn, and the requests that it gets."""
    left, seen = list(responses), []

    def answer(request):
        seen.append(request)
        return left.pop(0) if len(left) > 1 else left[0]

    return Client("http://example.test", retry_seconds=5.0, transport=httpx.MockTransport(answer)), seen


def problem(status, code, message="why", **more):
    return httpx.Response(status, json={"error": {"code": code, "message": message, **more}})


def test_a_busy_server_is_asked_again():
    busy = httpx.Response(503, headers={"Retry-After": "0"}, json={"error": {"code": "busy", "message": "later"}})
    client, seen = answering(busy, httpx.Response(502), httpx.Response(200, json={"runs": [], "cursor": None}))
    with client:
        assert client.list().runs == ()
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("response", "error", "message"),
    [
        (problem(401, "unauthenticated", "send the key"), NotAllowed, "send the key"),
        (problem(403, "missing_scope"), NotAllowed, "why"),
        (problem(500, "internal"), ServerError, "why"),
        (httpx.Response(404, text="<html>"), ServerError, "STOPPABLE_URL"),
        (httpx.Response(200, text="<html>"), ServerError, "STOPPABLE_URL"),
        (httpx.Response(200, json={"hello": 1}), ServerError, "STOPPABLE_URL"),
        (httpx.Response(200, json=7), ServerError, "STOPPABLE_URL"),
    ],
)
def test_every_answer_becomes_an_error_that_says_what_to_do(response, error, message):
    client, _ = answering(response)
    with client, pytest.raises(error, match=message):
        client.list()


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(504),  # of a proxy that has passed the request on
        problem(500, "internal"),
        problem(503, "store_unavailable"),
        httpx.Response(200, text="<html>"),
    ],
)
def test_a_start_of_which_nobody_says_what_became_is_taken_back(response, monkeypatch):
    monkeypatch.setattr("stoppable.client._sync.calls.STOP_ON_EXIT_SECONDS", 0.0)
    client, seen = answering(response)
    client._plans._retry_seconds = 0.0
    with client, pytest.raises((ServerError, StoreError)), client.run("agent", run_id="mine"):
        pass
    assert [request.url.path for request in seen] == ["/runs", "/runs/mine/stop"]
    assert seen[1].url.params["ifUnknown"] == "wait"


@pytest.mark.parametrize("response", [httpx.Response(301), httpx.Response(200, text="<html>")])
def test_a_release_that_no_server_of_ours_answers_is_none(response):
    client, _ = answering(response)
    with client, pytest.raises(ServerError, match="STOPPABLE_URL"):
        client.release("a-hold")


class Silent(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream that is cut after an hour without an event."""

    def __init__(self, clock):
        self._clock = clock

    def __iter__(self):
        yield b":\n\n"
        self._clock.advance(3600)
        raise httpx.ReadError("cut")

    async def __aiter__(self):
        for data in self:
            yield data


def test_a_run_that_is_silent_for_hours_is_followed_over_every_cut(connect):
    done = {"runId": "a", "seq": 1, "at": 1.0, "type": "done", "data": {}}
    with FakeClock() as clock:
        streams = [Silent(clock), Silent(clock), Silent(clock)]

        def answer(_):
            if streams:
                return httpx.Response(200, stream=streams.pop())
            return httpx.Response(200, content=f"id: 1\nevent: done\ndata: {json.dumps(done)}\n\n".encode())

        client = connect("http://example.test", transport=httpx.MockTransport(answer))
        assert [event.seq for event in client.events("a")] == [1]


CALLS = {
    "start": lambda client: client.start("agent"),
    "stop": lambda client: client.stop("a"),
    "stop_where": lambda client: client.stop_where(all=True),
    "holds": lambda client: client.holds(),
    "release": lambda client: client.release("a"),
    "get": lambda client: client.get("a"),
    "receipt": lambda client: client.receipt("a"),
    "tree": lambda client: client.tree("a"),
    "list": lambda client: client.list(),
    "agents": lambda client: client.agents(),
    "audit": lambda client: client.audit(),
    "events": lambda client: list(client.events("a")),
}
INNER = {name: [7] for name in ("runs", "receipts", "holds", "entries", "agents")}


@pytest.mark.parametrize("body", [{}, 7, "text", None, [7], {**INNER, "receipt": 7, "after": None}])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_answer_in_another_shape_is_not_of_our_server(call, body):
    client, _ = answering(httpx.Response(200, json=body))
    with client, pytest.raises(ServerError, match="STOPPABLE_URL"):
        call(client)


@pytest.mark.parametrize("data", ["7", "{}", "nope", '{"runId": "a", "seq": 1, "at": 1, "type": [], "data": {}}'])
def test_an_event_in_another_shape_is_not_of_our_server(data):
    client, _ = answering(httpx.Response(200, text=f"id: 1\ndata: {data}\n\n"))
    with client, pytest.raises(stoppable.StoppableError, match="is this a stoppable server"):
        list(client.events("a"))


@pytest.mark.parametrize("call", [CALLS["list"], CALLS["events"]], ids=["list", "events"])
def test_an_answer_that_cannot_be_unpacked_is_no_answer(call):
    def garbled(_):
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"not gzip"))

    with Client("http://example.test", retry_seconds=0.0, transport=httpx.MockTransport(garbled)) as client:
        with pytest.raises(ServerUnreachable, match="decompressing"):
            call(client)


@pytest.mark.parametrize("key", ["secret-key\n", " secret-key", "two\nlines"])
def test_a_key_that_no_header_carries_is_refused(key):
    with pytest.raises(stoppable.InvalidArgument, match="white space"):
        Client("http://example.test", api_key=key)
    client, seen = answering(httpx.Response(200, json={"receipts": []}))
    with client, pytest.raises(stoppable.InvalidArgument, match="white space"):
        client.stop_where(all=True, idempotency_key=key)
    assert seen == []


def test_a_key_may_be_in_any_script():
    client, seen = answering(httpx.Response(200, json={"receipts": []}))
    with client:
        client.stop_where(all=True, idempotency_key="ключ")
    assert (b"Idempotency-Key", "ключ".encode()) in seen[0].headers.raw
    with Client("http://example.test", api_key="ключ-от-сервера") as other:
        assert (b"Authorization", "Bearer ключ-от-сервера".encode()) in other._http.headers.raw


def test_a_store_that_stays_away_is_a_store_error():
    client, seen = answering(problem(503, "store_unavailable", "the store is away"))
    client._plans._retry_seconds = 0.1
    with client, pytest.raises(StoreError, match="the store is away"):
        client.list()
    assert len(seen) > 1


def test_the_key_goes_as_a_bearer_token_and_starts_carry_an_id(monkeypatch):
    monkeypatch.setenv("STOPPABLE_API_KEY", "from-the-environment")
    client, seen = answering(problem(422, "invalid_argument"))
    with client, pytest.raises(ValueError, match="why"):
        client.start("agent", {"a": 1})
    assert seen[0].headers["authorization"] == "Bearer from-the-environment"
    assert len(json.loads(seen[0].content)["runId"]) == 32


MESSAGES = st.lists(st.dictionaries(st.sampled_from(["id", "event", "data"]), st.text("ab:\u2028é ", min_size=1)))


@given(MESSAGES, st.data())
def test_messages_survive_any_cut_and_comments(messages, data):
    wire = b":\n\n".join(
        b"".join(f"{name}: {value}\n".encode() for name, value in message.items()) + b"\n" for message in messages
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = SseDecoder()
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[begin:end])
    assert found == [message for message in messages if message]


def test_a_message_of_several_data_lines_and_crlf():
    assert list(SseDecoder().feed(b"data: a\r\ndata: b\r\nid\r\n\r\n")) == [{"data": "a\nb", "id": ""}]


def test_a_long_line_is_looked_through_once():
    looked = 0

    class Counted(bytearray):
        def split(self, *args):
            nonlocal looked
            looked += len(self)
            return super().split(*args)

    decoder = SseDecoder()
    decoder._buffer = Counted()
    pieces = [b"data: ", *[b"x" * 1000] * 100, b"\n\n"]
    assert [message for piece in pieces for message in decoder.feed(piece)] == [{"data": "x" * 100_000}]
    assert looked == sum(map(len, pieces))


@pytest.mark.parametrize("piece", [b"x" * 10, b"data: x\n", b"other\n"])
def test_an_event_without_an_end_is_given_up(piece):
    decoder = SseDecoder(longest=100)
    assert list(decoder.feed(b"data: x\n\n" * 100)) == [{"data": "x"}] * 100
    with pytest.raises(StoppableError, match="more than 100 bytes"):
        for _ in range(50):
            list(decoder.feed(piece))


def test_an_event_of_a_newer_version_is_passed_over():
    parser = EventParser("run", 0)
    told = [{"runId": "run", "at": 0.0, "type": kind, "data": {}} for kind in ("status", "of tomorrow", "done")]
    wire = "".join(f"id: {number}\ndata: {json.dumps(data)}\n\n" for number, data in enumerate(told, 1))
    assert [(event.seq, event.type) for event in parser.feed(wire.encode())] == [(1, "status"), (3, "done")]
    assert parser.done
