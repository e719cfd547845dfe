"""Requests of ordinary clients as boundaries: what a stop lets finish, what it refuses, and what it leaves alone."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

import aiohttp
import httpx
import pytest
import requests
from tests.providers import TEXT
from tests.waiting import until, wait_until

import stoppable

PATH = "/v1/chat/completions"
BODY = {"model": "gpt-5", "messages": []}


def by_http_client(url, path=PATH, body=BODY):
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse().read()
    finally:
        connection.close()


def by_urllib(url, path=PATH, body=BODY):
    with urlopen(Request(url + path, json.dumps(body).encode()), timeout=60) as answer:
        return answer.read()


def by_requests(url, path=PATH, body=BODY):
    return requests.post(url + path, json=body, timeout=60).content


def by_httpx(url, path=PATH, body=BODY):
    return httpx.post(url + path, json=body, timeout=60).content


async def by_httpx_async(url, path=PATH, body=BODY):
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(url + path, json=body)).content


async def by_aiohttp(url, path=PATH, body=BODY):
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as response:
        return await response.read()


EVERY = [by_http_client, by_urllib, by_requests, by_httpx, by_httpx_async, by_aiohttp]
every_client = pytest.mark.parametrize("send", EVERY)


async def _call(send, *args):
    result = send(*args)
    return await result if asyncio.iscoroutine(result) else result


def nodes(run, kind="llm"):
    return [(node.name, str(node.fate)) for node in run.receipt.entries if node.kind == kind]


def agent_of(send, *args):
    """Return an agent that sends a request and then another one, as its client does: in a task or on a thread."""
    if asyncio.iscoroutinefunction(send):

        async def agent():
            await send(*args)
            await send(*args)

        return agent
    return lambda: (send(*args), send(*args))


@every_client
async def test_outside_runs_and_in_detached_nothing_changes(providers, send):
    providers.released.set()
    assert json.loads(await _call(send, providers.url))["choices"]

    async def agent():
        with stoppable.detached():
            return json.loads(await _call(send, providers.url))

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "completed"
    assert handle.run.partial is None


@every_client
async def test_a_request_is_in_flight_until_its_body_was_read_and_its_answer_is_kept(providers, send):
    handle = await stoppable.spawn(agent_of(send, providers.url))
    await until(lambda: providers.begun)
    receipt = await handle.stop()
    host = providers.url.removeprefix("http://")
    assert receipt.in_flight == (f"llm:{host}{PATH} gpt-5",)
    providers.released.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, outcome.partial) == ("stopped", "signal", TEXT)
    assert nodes(handle.run) == [(f"{host}{PATH} gpt-5", "finished")]
    assert len(providers.begun) == 1


async def test_a_request_that_was_sent_is_in_flight_although_nobody_waits_for_its_answer_yet(providers):
    sent, go = threading.Event(), threading.Event()

    def agent():
        connection = http.client.HTTPConnection(providers.url.removeprefix("http://"), timeout=60)
        connection.request("POST", PATH, json.dumps(BODY))
        sent.set()
        go.wait()
        with contextlib.closing(connection):
            return connection.getresponse().read()

    handle = await stoppable.spawn(agent)
    await until(sent.is_set)
    receipt = await handle.stop()
    go.set()
    providers.released.set()
    outcome = await handle.outcome()
    assert len(receipt.in_flight) == 1
    assert (outcome.status, outcome.partial) == ("completed", TEXT), "it met the stop nowhere"


@every_client
async def test_a_request_that_is_no_model_call_is_listed_as_such_and_its_text_is_not_kept(providers, send):
    providers.released.set()

    async def agent():
        await _call(send, providers.url, "/search")
        stoppable.current_run().stop("cooperative")
        await _call(send, providers.url, "/search")

    handle = await stoppable.spawn(agent)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.partial, len(providers.begun)) == ("stopped", None, 1)


@every_client
async def test_inside_a_guarded_call_a_request_is_a_part_of_it(providers, send):
    providers.released.set()

    async def agent():
        with stoppable.boundary("llm", "mine"):
            stoppable.current_run().stop("cooperative")
            await _call(send, providers.url)  # the call in flight may finish
        stoppable.check()

    handle = await stoppable.spawn(agent)
    outcome = await handle.outcome()
    assert (outcome.status, nodes(handle.run), len(providers.begun)) == ("stopped", [("mine", "finished")], 1)


@every_client
async def test_clean_up_may_send_requests(providers, send):
    providers.released.set()

    async def agent():
        stoppable.current_run().stop("cooperative")
        try:
            stoppable.check()
        finally:
            await _call(send, providers.url, "/release")

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, providers.begun) == ("stopped", ["/release"])


@every_client
async def test_hosts_that_are_spared_are_no_boundaries(providers, send):
    stoppable.instrument(spare=["127.0.0.1"])
    providers.released.set()

    async def agent():
        stoppable.current_run().stop("cooperative")
        await _call(send, providers.url)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, len(providers.begun)) == ("completed", 1) or outcome.status == "stopped"
    assert len(providers.begun) == 1


@every_client
async def test_after_uninstrument_requests_are_no_boundaries(providers, send):
    stoppable.uninstrument()
    providers.released.set()

    async def agent():
        stoppable.current_run().stop("cooperative")
        await _call(send, providers.url)

    await (await stoppable.spawn(agent)).outcome()
    assert len(providers.begun) == 1


@every_client
async def test_a_connection_that_is_refused_raises_what_it_raises_without_stoppable(send):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Exception) as without:
        with stoppable.detached():
            await _call(send, url)

    async def agent():
        await _call(send, url)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, type(outcome.error)) == ("failed", type(without.value))


@pytest.mark.parametrize("send", [by_http_client, by_urllib, by_requests, by_httpx])
async def test_a_thread_that_waits_for_an_answer_is_woken_by_force(providers, send):
    handle = await stoppable.spawn(agent_of(send, providers.url))
    await until(lambda: providers.begun)
    await handle.stop(grace=0.05)
    outcome = await handle.outcome()
    assert outcome.status == "stopped"
    assert [fate for _, fate in nodes(handle.run)] == ["interrupted"]
    await until(lambda: providers.closed.acquire(blocking=False))


@pytest.mark.parametrize("send", [by_http_client, by_httpx])
async def test_a_thread_that_waits_for_a_connection_is_woken_by_force(send):
    """The connection is there, but nobody accepts it and answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        handle = await stoppable.spawn(agent_of(send, f"http://127.0.0.1:{server.getsockname()[1]}"))
        await until(lambda: handle.run.in_flight)
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"


def test_clean_up_on_a_thread_is_not_cut_by_interrupt(providers):
    begun = threading.Event()

    def agent():
        stoppable.current_run().stop(grace=0)
        try:
            stoppable.check()
        finally:
            begun.set()
            by_requests(providers.url, "/release")

    def release():
        wait_until(lambda: providers.begun)
        providers.released.set()

    with stoppable.detached():
        threading.Thread(target=release).start()
    with pytest.raises(stoppable.RunStopped) as stopped:
        stoppable.run(agent)
    assert (stopped.value.outcome.status, stopped.value.outcome.error) == ("stopped", None)


async def test_of_an_answer_that_has_arrived_nothing_is_lost(providers):
    """With aiohttp the answer may be complete before it is read: then a stop does not take it away."""
    providers.released.set()

    async def agent():
        async with aiohttp.ClientSession() as session, session.post(providers.url + PATH, json=BODY) as response:
            await until(response.content.is_eof)
            stoppable.current_run().stop("cooperative")
            stoppable.set_partial((await response.json())["choices"][0]["message"]["content"])
            await session.post(providers.url + PATH, json=BODY)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert (outcome.status, outcome.partial, len(providers.begun)) == ("stopped", TEXT, 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda content: content.readline(),
        lambda content: content.readany(),
        lambda content: content.readchunk(),
        lambda content: content.readuntil(b"\n"),
        lambda content: content.readexactly(10),
        lambda content: content.read(10),
        lambda content: anext(content.iter_any()),
        lambda content: anext(content.iter_chunked(10)),
        lambda content: anext(content.iter_chunks()),
        lambda content: anext(aiter(content)),
    ],
)
async def test_every_way_to_read_a_stream_of_aiohttp_is_a_part_of_the_run(providers, read):
    async def agent():
        async with aiohttp.ClientSession() as session:
            response = await session.post(providers.url + PATH, json=BODY | {"stream": True})
            assert await read(response.content)
            stoppable.current_run().stop("cooperative")
            await read(response.content)

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert [fate for _, fate in nodes(handle.run)] == ["closed"]


@pytest.mark.parametrize("way", ["break", "close", "drop"])
async def test_a_stream_that_is_left_is_no_longer_in_flight(providers, way):
    async def agent():
        client = httpx.AsyncClient()
        request = client.build_request("POST", providers.url + PATH, json=BODY | {"stream": True})
        response = await client.send(request, stream=True)
        async for _ in response.aiter_bytes():
            break
        assert stoppable.current_run().in_flight == ()
        if way != "break":
            await response.aclose()
        if way == "drop":
            del response
        providers.released.set()
        await client.aclose()
        return "done"

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).result == "done"


async def test_a_stream_that_a_stopped_agent_left_open_is_closed(providers):
    left = []

    async def agent():
        client = httpx.AsyncClient()
        request = client.build_request("POST", providers.url + PATH, json=BODY | {"stream": True})
        left.append(await client.send(request, stream=True))
        async for _ in left[0].aiter_bytes():
            break
        stoppable.current_run().stop("cooperative")
        stoppable.check()

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"
    assert [fate for _, fate in nodes(handle.run)] == ["closed"]
    await until(lambda: providers.closed.acquire(blocking=False))


async def test_the_retry_of_a_client_is_a_request_of_its_own(providers):
    """The openai client and others try again: after a stop they do not."""
    transport = httpx.HTTPTransport(retries=0)

    def agent():
        with httpx.Client(transport=transport) as client:
            for _ in range(3):
                try:
                    client.post("http://127.0.0.1:9", json=BODY, timeout=1)
                except httpx.TransportError:
                    stoppable.current_run().stop("cooperative")

    handle = await stoppable.spawn(agent)
    assert (await handle.outcome()).status == "stopped"


async def test_stoppables_own_client_is_no_boundary():
    from stoppable.client import Client

    def agent():
        stoppable.current_run().stop("cooperative")
        with Client("http://127.0.0.1:9", retry_seconds=0) as client:
            with pytest.raises(Exception, match=r"127\.0\.0\.1"):
                client.get("x")

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert outcome.error is None


@contextlib.contextmanager
def _serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Halves(BaseHTTPRequestHandler):
    """Sends a JSON answer in two halves."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "application/json; charset=utf-8")
        self.end_headers()
        self.wfile.write(b'{"one": 1, ')
        self.server.half.set()
        self.server.go.wait(60)
        self.wfile.write(b'"two": 2}')

    def log_message(self, *_args):
        pass


def _read_as_stream(url):
    with httpx.Client(timeout=60) as client, client.stream("GET", url) as response:
        return json.loads(response.read())


async def _read_as_stream_async(url):
    async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", url) as response:
        return json.loads(await response.aread())


@pytest.mark.parametrize("read", [_read_as_stream, _read_as_stream_async])
async def test_an_answer_in_json_that_is_read_as_a_stream_is_read_to_its_end(read):
    """huggingface_hub reads every answer so."""
    with _serving(_Halves) as server:
        server.half, server.go = threading.Event(), threading.Event()
        handle = await stoppable.spawn(read, f"http://127.0.0.1:{server.server_port}/x")
        await until(server.half.is_set)
        await handle.stop()
        server.go.set()
        assert (await handle.outcome()).result == {"one": 1, "two": 2}
        assert [fate for _, fate in nodes(handle.run, "http")] == ["finished"]


class _Download(BaseHTTPRequestHandler):
    """Sends a file in pieces, for as long as somebody reads it."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/csv")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"a,b\n")
        self.server.closed.set()

    def log_message(self, *_args):
        pass


@pytest.fixture
def download():
    with _serving(_Download) as server:
        server.closed = threading.Event()
        yield server


async def test_what_requests_reads_piece_by_piece_ends_between_two_pieces_whatever_its_type(download):
    pieces = []

    def agent():
        with requests.get(f"http://127.0.0.1:{download.server_port}/table.csv", stream=True, timeout=60) as response:
            for piece in response.iter_content(4):
                pieces.append(piece)

    handle = await stoppable.spawn(agent)
    await until(lambda: len(pieces) > 3)
    await handle.stop()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung) == ("stopped", "signal")
    assert nodes(handle.run, "http") == [(f"GET 127.0.0.1:{download.server_port}/table.csv", "closed")]
    assert await asyncio.to_thread(download.closed.wait, 30)
