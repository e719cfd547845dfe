"""One owner cannot use up a server: whatever it holds, another owner's Stop is answered."""

import asyncio
import contextlib
import json
import socket
from http.client import HTTPConnection

import pytest
from fastapi import Header
from tests.waiting import until, wait_until

import stoppable
from stoppable.server import Principal, ServerLimits
from stoppable.server.limits import is_stop

from .serving import DEADLINE, served


async def by_header(x_user: str = Header()) -> Principal:
    return Principal(owner=x_user, actor=x_user)


async def deaf():
    """Work on after a cooperative stop, as long as the test lasts."""
    await asyncio.sleep(600)


async def sleeper():
    await stoppable.sleep(600)


def address(service):
    host, port = service.url.removeprefix("http://").split(":")
    return host, int(port)


def ask(service, user, method, path, body=None):
    """Make one request on a connection of its own; return its status and its body."""
    connection = HTTPConnection(*address(service), timeout=DEADLINE)
    with contextlib.closing(connection):
        headers = {"X-User": user, "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read() or "null")


class Client:
    """A raw connection with one request under way."""

    def __init__(self, service, user, method, path, body=b""):
        self._socket = socket.create_connection(address(service), timeout=DEADLINE)
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-User: {user}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(head.encode() + b"\r\n" + body)

    def status(self):
        """Return the status of the answer, or None if the server closed the connection without one."""
        try:
            line = self._socket.recv(12)
        except ConnectionError:
            return None
        return int(line.split()[1]) if line else None

    def close(self):
        self._socket.close()


@contextlib.contextmanager
def clients():
    """Yield a function that opens raw connections, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def opened(*args):
            client = Client(*args)
            stack.callback(client.close)
            return client

        yield opened


def waiting_stop(opened, service, user, run_id):
    return opened(service, user, "POST", f"/runs/{run_id}/stop?wait=300", b'{"mode":"cooperative"}')


def reserve(service, count):
    """Set so many connections aside for stops, to fill a server with fewer sockets."""
    service._idle.reserved_for_stops = count


def start(service, user, agent, run_id):
    """Start a run, and wait until it has begun: a stop before that would keep it from beginning."""
    assert ask(service, user, "POST", "/runs", {"agent": agent, "runId": run_id})[0] == 201
    wait_until(lambda: ask(service, user, "GET", f"/runs/{run_id}")[1]["status"] == "running")


def shares(service):
    return service.app.state.backend.shares


async def test_waiting_stops_of_one_owner_do_not_keep_another_from_stopping_reading_and_following():
    with served([deaf], principal=by_header, limits=ServerLimits(connections=40)) as service:
        reserve(service, 16)
        start(service, "bob", "deaf", "of-bob")
        start(service, "ann", "deaf", "of-ann")
        with clients() as opened:
            flood = [waiting_stop(opened, service, "bob", "of-bob") for _ in range(120)]
            await until(lambda: shares(service)._waits["bob"] == 20)
            for _ in range(8):
                status, told = ask(service, "ann", "POST", "/runs/of-ann/stop", {"mode": "cooperative"})
                assert status == 202, told
            assert ask(service, "ann", "GET", "/runs/of-ann")[0] == 200
            assert opened(service, "ann", "GET", "/events").status() == 200
            status, told = ask(service, "ann", "POST", "/runs/of-ann/stop?wait=30", {"mode": "immediate"})
            assert (status, told["status"]) == (200, "stopped"), "ann's own stop is waited for"
            ask(service, "bob", "POST", "/runs/of-bob/stop", {"mode": "kill"})
            answered = [client.status() for client in flood]
            assert answered.count(200) == 20, "they waited for the end"
        await until(lambda: not shares(service)._waits and not shares(service)._requests)


async def test_a_stop_on_a_reserved_connection_is_answered_once_it_is_stored():
    with served([deaf], limits=ServerLimits(connections=6)) as service:
        reserve(service, 4)
        start(service, "-", "deaf", "first")
        start(service, "-", "deaf", "second")
        with clients() as opened:
            for _ in range(6):
                waiting_stop(opened, service, "-", "first")
            await until(lambda: len(service._server.server_state.connections) == 6)
            for _ in range(12):  # more than are reserved
                client = waiting_stop(opened, service, "-", "second")
                assert client.status() == 202, "answered, though the run may not have ended"
            status, told = ask(service, "-", "GET", "/runs/second/receipt")
            assert (status, told["error"]["code"]) == (503, "too_many_connections")
        await until(lambda: not service._server.server_state.connections)
        assert ask(service, "-", "GET", "/runs/second/receipt")[1]["mode"] == "cooperative"
        ask(service, "-", "POST", "/stops?wait=30", {"selector": {"all": True}, "mode": "kill"})


async def test_a_bulk_stop_beyond_the_share_of_its_owner_is_stored_and_not_waited_for():
    with served([deaf], principal=by_header, limits=ServerLimits(owner_waits=1)) as service:
        start(service, "bob", "deaf", "of-bob")
        with clients() as opened:
            waiting_stop(opened, service, "bob", "of-bob")
            await until(lambda: shares(service)._waits["bob"] == 1)
            asked = {"selector": {"agent": "deaf"}, "mode": "cooperative"}
            status, told = ask(service, "bob", "POST", "/stops?wait=300", asked)
            assert (status, told["receipts"][0]["status"]) == (200, "stopping")
            ask(service, "bob", "POST", "/stops", {"selector": {"agent": "deaf"}, "mode": "kill"})


@pytest.mark.parametrize("path", ["/events", "/runs/of-bob/events", "/runs/of-bob/events?tree=true"])
async def test_the_streams_of_one_owner_leave_room_for_those_of_another(path):
    with served([sleeper], principal=by_header, limits=ServerLimits(streams=6)) as service:
        start(service, "bob", "sleeper", "of-bob")
        start(service, "ann", "sleeper", "of-ann")
        with clients() as opened:
            assert [opened(service, "bob", "GET", path).status() for _ in range(3)] == [200] * 3
            status, told = ask(service, "bob", "GET", path)
            assert (status, told["error"]["code"]) == (429, "too_many_streams")
            assert "close some" in told["error"]["message"]
            assert [opened(service, "ann", "GET", "/events").status() for _ in range(2)] == [200] * 2
        await until(lambda: not service.app.state.backend.streams._owners)
        with clients() as opened:
            assert opened(service, "bob", "GET", path).status() == 200


async def test_beyond_the_requests_of_one_owner_only_its_stops_are_taken():
    with served([sleeper], principal=by_header, limits=ServerLimits(owner_connections=2)) as service:
        start(service, "bob", "sleeper", "of-bob")
        with clients() as opened:
            assert [opened(service, "bob", "GET", "/events").status() for _ in range(2)] == [200] * 2
            status, told = ask(service, "bob", "GET", "/runs")
            assert (status, told["error"]["code"]) == (429, "too_many_requests")
            assert "stops are still taken" in told["error"]["message"]
            assert ask(service, "ann", "GET", "/runs")[0] == 200
            assert ask(service, "bob", "POST", "/runs/of-bob/stop")[0] in {200, 202}
        await until(lambda: not shares(service)._requests)
        assert ask(service, "bob", "GET", "/runs")[0] == 200


@pytest.mark.parametrize("path", ["/runs/of-bob/stop", "/stops", "/v1/responses/resp_1/cancel", "/a2a/tasks/1:cancel"])
def test_a_stop_of_every_protocol_is_known_by_its_path(path):
    assert is_stop({"method": "POST", "path": path})
    assert not is_stop({"method": "GET", "path": path})
    assert not is_stop({"method": "POST", "path": f"{path}/more"})


async def test_a_refused_connection_is_logged(caplog):
    with served([sleeper], limits=ServerLimits(connections=2)) as service:
        reserve(service, 0)
        with clients() as opened:
            assert [opened(service, "-", "GET", "/events").status() for _ in range(2)] == [200] * 2
            assert opened(service, "-", "GET", "/runs").status() is None
            assert "refused 1, because all of them are in use" in caplog.text
            for _ in range(3):
                opened(service, "-", "GET", "/runs").status()
        assert caplog.text.count("refused") == 1, "a flood does not fill the log"


async def test_a_request_that_is_refused_for_want_of_connections_is_logged(caplog):
    with served([sleeper], limits=ServerLimits(connections=1)) as service, clients() as opened:
        assert opened(service, "-", "GET", "/events").status() == 200
        assert ask(service, "-", "GET", "/runs")[0] == 503
        assert "refused 1, because all of them are in use" in caplog.text
