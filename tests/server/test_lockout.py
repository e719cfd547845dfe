"""Somebody without a key cannot keep a Stop from getting through, however many connections they open."""

import contextlib
import json
import resource
import socket
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from stoppable import agent, sleep
from stoppable.server import ServerLimits
from stoppable.server.limits import IdleConnections

from ..served import DEADLINE, HERE, Server
from .serving import served

KEY = "the-key-of-this-server"


@agent
async def waiting():
    await sleep(600)


def address(url):
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def connect(url):
    return socket.create_connection(address(url), timeout=DEADLINE)


def ask(url, method, path, body=None):
    """Make one request with the key on a connection of its own; return its status and its body."""
    connection = HTTPConnection(*address(url), timeout=DEADLINE)
    with contextlib.closing(connection):
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def start_and_stop(url):
    status, run = ask(url, "POST", "/runs", {"agent": "waiting"})
    assert status == 201, run
    status, told = ask(url, "POST", f"/runs/{run['id']}/stop?wait=30")
    assert (status, told["status"]) == (200, "stopped"), told


def is_closed(connection):
    """Read until the other side closes; a connection that is kept runs into the deadline of the socket."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65_536):
            pass
    return True


BEHIND = {
    "an empty line": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unfinished body": b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    b"Content-Type: application/json\r\n\r\n",
}


@pytest.mark.parametrize("what", BEHIND)
def test_one_more_byte_behind_a_response_does_not_keep_the_connection(what):
    with served([waiting], api_key=KEY, limits=ServerLimits(body_seconds=0.2)) as service:
        service._config.timeout_keep_alive = 0.2
        with connect(service.url) as connection:
            connection.sendall(BEHIND[what])
            assert connection.recv(12) in {b"HTTP/1.1 200", b"HTTP/1.1 401", b"HTTP/1.1 408"}
            with contextlib.suppress(ConnectionError):  # on a busy machine it is closed before that
                connection.sendall(b"\r\n" if what == "an empty line" else b"{")
            assert is_closed(connection)


@contextlib.contextmanager
def flood(url, count, send=b""):
    """Hold as many connections as the server lets us."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = stack.enter_context(connect(url))
            with contextlib.suppress(ConnectionError):
                connection.sendall(send)
        yield


@pytest.mark.parametrize(
    "send",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: loc", *BEHIND.values()],
    ids=["nothing", "half a head", "an answered request", "half a body"],
)
def test_a_stop_gets_through_while_others_hold_every_connection(send):
    limits = ServerLimits(connections=40, body_seconds=600, head_seconds=600)
    with served([waiting], api_key=KEY, limits=limits) as service:
        service._config.timeout_keep_alive = 600
        with flood(service.url, 120, send):
            for _ in range(5):
                start_and_stop(service.url)


def test_a_reader_that_takes_nothing_of_a_large_response_gives_way_too():
    limits = ServerLimits(connections=20)
    with served([waiting], api_key=KEY, limits=limits) as service:
        request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
        with flood(service.url, 60, request):
            start_and_stop(service.url)


def test_when_requests_use_every_connection_only_a_stop_is_taken_and_the_others_are_told_so():
    with served([waiting], api_key=KEY, limits=ServerLimits(connections=4)) as service:
        _, run = ask(service.url, "POST", "/runs", {"agent": "waiting"})
        path = f"/runs/{run['id']}/events"
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stream = stack.enter_context(connect(service.url))
                stream.sendall(request)
                assert stream.recv(12) == b"HTTP/1.1 200"
            status, told = ask(service.url, "GET", "/runs")
            assert (status, told["error"]["code"]) == (503, "too_many_connections")
            status, told = ask(service.url, "POST", f"/runs/{run['id']}/stop")
            assert status == 202, told


def test_the_files_that_a_process_may_open_bound_its_connections_and_a_stop_gets_through():
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
from stoppable.server import serve
from tests.server.test_lockout import waiting
serve([waiting], api_key={KEY!r}, port=0, ready=lambda url: print("at", url, file=sys.stderr, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=HERE.parent, stderr=subprocess.PIPE, text=True)
    server = Server(process)
    try:
        url = server.url()
        with flood(url, 400):
            for _ in range(3):
                start_and_stop(url)
        process.terminate()
        assert process.wait(DEADLINE) == 0
        assert "this process may open 300 files" in server.said()
        assert "that waited longest" in server.said()
    finally:
        process.kill()
        process.wait(DEADLINE)
        server.close()


class Cuttable:
    def __init__(self):
        self.is_cut = False

    def cut(self):
        self.is_cut = True


def test_an_address_that_holds_more_than_its_share_loses_its_own_oldest_connection():
    connections = IdleConnections(100, per_address=2)
    other, first, second, third = (Cuttable() for _ in range(4))
    connections.add_idle(other, "10.0.0.1")
    for one in (first, second, third):
        connections.add_idle(one, "10.0.0.2")
    assert [one.is_cut for one in (other, first, second, third)] == [False, True, False, False]
    connections.remove(other)
    connections.remove(second)
    assert connections.make_room(100)
    assert third.is_cut
    assert not connections.make_room(100), "nobody is left who waits"


@pytest.mark.parametrize("files", [300, 1024, 4096, 65_536])
def test_what_is_set_aside_for_stops_is_within_the_open_files_too(files, monkeypatch):
    monkeypatch.setattr("stoppable.server.limits.open_file_limit", lambda: files)
    connections = IdleConnections(8192, per_address=2)
    backlog = connections.fit_into_open_files()
    assert connections.limit + connections.reserved_for_stops + backlog < files
    assert connections.limit >= min(8192, files // 8)


def test_the_limit_of_open_files_is_raised_for_a_server():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with served([waiting]):
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(max(soft, 65_536), hard)
