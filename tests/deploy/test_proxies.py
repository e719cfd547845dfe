"""nginx and Caddy, as deploy/ sets them up, in front of two real replicas on a real Postgres, with TLS."""

import contextlib
import functools
import signal
import socket
import time

import httpx
import pytest

from .files import SECONDS, wait_until

pytestmark = pytest.mark.timeout(1800)  # all waits have deadlines; this is for a machine that has other work


@pytest.fixture
def steps(tmp_path):
    """A folder in which a test allows an agent its steps."""
    folder = tmp_path / "steps"
    folder.mkdir()
    return folder


def allow(steps, *numbers):
    for number in numbers:
        (steps / str(number)).touch()


def until_step(events, number):
    """Read until the agent has made a step, and return what was read."""
    read = []
    for event in events:
        read.append(event)
        if event["event"] == "progress" and event["data"]["data"]["data"] == {"number": number}:
            return read
    raise AssertionError(f"the stream has ended before step {number}: {read}")


def ids(events):
    return [int(event["id"]) for event in events]


@contextlib.contextmanager
def stream_through(proxy, replica, run):
    """Open streams until the proxy has one from this replica, and yield its events."""
    deadline = time.monotonic() + SECONDS
    while True:
        with proxy.events(run) as events:
            first = next(events)
            if replica.metric("stoppable_streams") == 1:
                yield first, events
                return
        assert time.monotonic() < deadline, f"{proxy.kind} asks the other replica only"


def test_a_stream_is_not_buffered_and_goes_on_at_the_other_replica(proxy, replicas, steps):
    """The agent makes no step before the last one was read, so a proxy that collects bytes would pass on nothing."""
    here, there = replicas
    run = there.start("in_steps", input={"folder": str(steps)})
    with stream_through(proxy, here, run) as (first, events):
        read = [first]
        for number in (1, 2, 3):
            allow(steps, number)
            read += until_step(events, number)
        here.signal(signal.SIGKILL)
        here.ends()
        with contextlib.suppress(httpx.RemoteProtocolError):  # it is cut, or ends
            read += events
    allow(steps, 4)
    with proxy.events(run, after=read[-1]["id"]) as events:
        read += until_step(events, 4)
        stopped = wait_until(lambda: proxy.stop(run))
        assert (stopped.status_code, stopped.json()["status"]) == (202, "stopping"), stopped.text
        read += events
    assert read[-1]["event"] == "done"
    assert ids(read) == list(range(1, len(read) + 1)), "no event is missing, and none came twice"
    receipt = proxy.http.get(f"/runs/{run}/receipt").json()
    assert receipt["reason"]["message"] == "enough"
    assert there.over(run)["status"] == "stopped"


def test_while_a_replica_shuts_down_starts_reach_the_other_one(proxy, replicas, steps):
    here, there = replicas
    slow = here.start("stubborn", input={"folder": str(steps)}, policy={"grace": 300})
    here.signal(signal.SIGTERM)
    wait_until(lambda: not listens(here))
    runs = [wait_until(lambda: proxy.start("forever")) for _ in range(6)]
    assert here.process.poll() is None, "it waits for its run"
    (steps / "end").touch()
    assert here.ends() == 0
    assert there.over(slow)["status"] == "stopped"
    for run in runs:
        wait_until(functools.partial(proxy.stop, run))
        assert there.over(run)["status"] == "stopped"


def listens(replica):
    try:
        socket.create_connection(("127.0.0.1", replica.port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_reader_that_leaves_is_seen_to_leave(lasting_proxy, lasting_replicas):
    """A run that is to end with its last reader ends, because the proxy does not go on reading for nobody."""
    run = lasting_proxy.start("forever", onDisconnect="stop")
    with lasting_proxy.events(run) as events:
        next(events)
        assert lasting_replicas[0].status(run) in {"pending", "running"}
    assert lasting_replicas[0].over(run)["status"] == "stopped"


def test_the_server_sees_the_name_that_the_page_has(lasting_proxy):
    """It compares both: a page of the site may stop runs, a page of another may not."""
    here = f"https://localhost:{lasting_proxy.port}"
    run = lasting_proxy.start("forever")
    refused = lasting_proxy.http.post(f"/runs/{run}/stop", json={}, headers={"origin": "https://elsewhere.example"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
    assert lasting_proxy.http.post(f"/runs/{run}/stop", json={}, headers={"origin": here}).status_code in {200, 202}


def test_without_the_key_nothing_is_answered(lasting_proxy):
    """A header that says who asks changes nothing: the server ignores `X-Forwarded-*`."""
    nobody = {"authorization": "", "x-forwarded-for": "127.0.0.1", "x-forwarded-host": "localhost"}
    assert lasting_proxy.http.get("/runs", headers=nobody).status_code == 401
    assert lasting_proxy.http.get("/metrics", headers=nobody).status_code == 401


def test_plain_http_is_sent_to_tls(lasting_proxy):
    if lasting_proxy.kind == "caddy":
        pytest.skip("Caddy does so by itself, on port 80 only")
    answer = httpx.get(f"http://127.0.0.1:{lasting_proxy.plain_port}/runs?limit=1", headers={"host": "localhost"})
    assert (answer.status_code, answer.headers["location"]) == (308, "https://localhost/runs?limit=1")
