"""`stoppable serve` as a process: what it forgets, and how it ends while its store does not answer."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import apsw
import pytest

from stoppable import Policy, sync
from stoppable.cli import serve
from stoppable.cli.exits import Exit
from stoppable.client import Client, NotAllowed
from stoppable.errors import RunNotFound
from stoppable.records import EventType

from ..served import HERE, server_process, serving_process
from ..waiting import wait_until

pytestmark = pytest.mark.timeout(120)


def is_forgotten(client, run_id):
    try:
        client.get(run_id)
    except RunNotFound:
        return True
    return False


def test_serve_forgets_what_ended_longer_ago_than_keep_days_with_the_first_heartbeat_of_its_ttl(tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    with sync.Supervisor(store) as supervisor:
        old = supervisor.start(int)
        old.result()
    with server_process("--store", store, "--keep-days", "1e-6", "--ttl", "3") as url, Client(url) as client:
        wait_until(lambda: is_forgotten(client, old.id))
        [(ttl,)] = apsw.Connection(str(tmp_path / "runs.db")).execute("SELECT ttl FROM workers WHERE state = 'open'")
        assert ttl == 3


def test_the_commands_to_try_give_an_agent_the_arguments_that_it_needs():
    def agent(topic: str, rounds: int, tags: list[str], *more, depth=3, strict: bool, **options):
        """Need some arguments."""

    assert serve.example_input(agent) == {"topic": "example", "rounds": 1, "tags": [], "strict": True}
    assert serve.example_input(max) == {}
    assert serve._as_word({"topic": "it's"}) == """'{"topic": "it'"'"'s"}'"""


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("key", [None, "a key of its own"])
def test_what_serve_tells_to_type_works_word_for_word(key, tmp_path):
    environment = {"PATH": os.defpath, "STOPPABLE_STORE": f"sqlite:///{tmp_path}/runs.db"}
    environment |= {} if key is None else {"STOPPABLE_API_KEY": key}
    with serving_process(**environment) as (server, _):
        told = re.findall(r"^  ((?:curl|export|\S+ -m stoppable) .*)$", server.greeting(), re.MULTILINE)
        assert [line.split()[0] for line in told[:4]] == ["curl", "curl", "curl", "export"]
        assert len(told) == 7
        session = "\n".join(line for line in told if not line.endswith(" watch"))
        done = subprocess.run(
            ["bash", "-ec", session], cwd=HERE, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert '"error":{' not in done.stdout


@contextlib.contextmanager
def held(path):
    """Hold a file as a process does that hangs in the middle of a transaction."""
    code = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        yield
    finally:
        holder.communicate(timeout=60)


@contextlib.contextmanager
def serving_a_held_file(path, policy=None, agent="waiting"):
    """Yield a server with a run, once another process has taken its file, and the id of the run."""
    with serving_process("--store", f"sqlite:///{path}") as (server, url), Client(url) as client:
        record = client.start(agent, policy=policy)
        for event in client.events(record.id):
            if event.type is EventType.STATUS and event.data["status"] == "running":
                break
        with held(path):
            yield server, record.id


def press(server, number, times):
    """Press, one by one: signals that come at once are one."""
    for mode in ("graceful", "immediate", "kill", None)[:times]:
        server.process.send_signal(number)
        if mode:
            server.hear(f"the runs are stopped ({mode})")


def assert_left(server):
    began = time.monotonic()
    assert server.process.wait(60) == Exit.UNREACHABLE  # the store answers again only after that
    said = server.said()
    assert "the store did not answer in time: the next supervisor" in said
    assert "Traceback" not in said
    return time.monotonic() - began


def end_of(path, run_id):
    with sync.Supervisor(f"sqlite:///{path}", ttl=3) as supervisor:
        return wait_until(lambda: (found := supervisor.get(run_id)).over and found.status)


def test_one_signal_ends_it_while_the_store_does_not_answer(tmp_path):
    path = tmp_path / "runs.db"
    policy = Policy(grace=0.4, interrupt=0.1, cancel=0.3, kill=0.2)
    with serving_a_held_file(path, policy) as (server, run_id):
        server.process.send_signal(signal.SIGTERM)
        assert assert_left(server) > 5, "the store had its time"
    assert end_of(path, run_id) == "failed", "the next supervisor writes it down; nobody could keep the stop"


def test_after_a_kill_it_does_not_wait_for_the_store_for_ever(tmp_path):
    path = tmp_path / "runs.db"
    with serving_a_held_file(path, Policy(grace=60, cancel=60)) as (server, _):  # the ladder is slower than the presses
        press(server, signal.SIGTERM, 3)
        assert_left(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_fourth_signal_ends_it_at_once(tmp_path, number):
    path = tmp_path / "runs.db"
    with serving_a_held_file(path, Policy(kill=300), "stuck") as (server, _):  # three would leave after five minutes
        press(server, number, 4)
        assert_left(server)


@pytest.mark.parametrize(
    ("limit", "says"),
    [("no_such=1", "'no_such' is not a limit"), ("owner_runs=many", "NAME=NUMBER"), ("owner_runs=-1", "from 0 up")],
)
def test_a_limit_that_is_none_is_refused(limit, says):
    command = [sys.executable, "-m", "stoppable", "serve", "served_agents", "--limit", limit]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == Exit.USAGE
    assert says in done.stderr


def test_serve_takes_limits_and_origins():
    with server_process(
        "--store",
        "memory://",
        "--limit",
        "owner_runs=0",
        "--limit",
        "rung_seconds=2.5",
        "--origin",
        "https://a.example",
    ) as url:
        with Client(url) as client, pytest.raises(NotAllowed, match="which is the limit here"):
            client.start("echo", owner="ada")
        request = urllib.request.Request(f"{url}/runs", headers={"Origin": "https://a.example"})
        with urllib.request.urlopen(request) as response:
            assert response.headers["access-control-allow-origin"] == "https://a.example"
