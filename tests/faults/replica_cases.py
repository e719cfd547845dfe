"""What a fleet does on any store that its replicas share; a subclass says which."""

import contextlib
import json
import signal
import threading

import httpx
import pytest
from tests.waiting import wait_until

from .replicas import DEADLINE, Replicas

TTL = 30.0  # nobody loses a lease here, however busy the machine is


def ask(replica, method, path, **options):
    return httpx.request(method, replica.url + path, timeout=DEADLINE, **options)


def start(replica, agent, marks, **more):
    response = ask(replica, "POST", "/runs", json={"agent": agent, "input": {"marks": str(marks)}, **more})
    assert response.status_code == 201, response.text
    return response.json()["id"]


def stop(replica, run, **more):
    response = ask(replica, "POST", f"/runs/{run}/stop", json=more)
    assert response.status_code in {200, 202}, response.text
    return response.json()["receipt"]


def record_of(replica, run):
    return ask(replica, "GET", f"/runs/{run}").json()


def over(replica, run):
    """Return the record of a run, once it has ended, as one replica tells it."""
    return wait_until(lambda: (record := record_of(replica, run))["endedAt"] and record, DEADLINE)


def started(replica, run):
    wait_until(lambda: record_of(replica, run)["status"] == "running", DEADLINE)
    return run


class Watcher:
    """Follows the events of a run until they end."""

    def __init__(self, replica, run):
        self.events = []
        self._url = f"{replica.url}/runs/{run}/events"
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        with httpx.stream("GET", self._url, timeout=DEADLINE) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))

    def ended(self):
        """Return all events, once the stream has ended."""
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive(), "the stream has not ended"
        return self.events


class ReplicaCases:
    """Start anywhere, stop anywhere, watch anywhere; and one that ends, in order or not, leaves nothing undecided."""

    @pytest.fixture(scope="class")
    @classmethod
    def store(cls):
        raise NotImplementedError("the URL of the store")

    @pytest.fixture(scope="class")
    @classmethod
    def replicas(cls, store):
        """Replicas that no test ends: a server takes a while to start."""
        with Replicas([store] * 3, TTL) as replicas:
            yield replicas

    def test_a_run_is_started_stopped_watched_and_listed_on_any_replica(self, replicas, tmp_path):
        first, second, third = replicas
        run = started(second, start(first, "tidy", tmp_path / "marks", labels={"team": "blue"}))
        watchers = [Watcher(replica, run) for replica in replicas]
        wait_until(lambda: all(watcher.events for watcher in watchers), DEADLINE)
        for replica in replicas:
            listed = ask(replica, "GET", "/runs", params={"label": "team:blue"}).json()["runs"]
            assert [one["id"] for one in listed] == [run]
            assert ask(replica, "GET", "/").status_code == 200  # the web UI
        assert stop(third, run, reason="from the third")["answer"] == "accepted"
        assert stop(second, run)["answer"] in {"already_stopping", "already_finished"}
        ends = [over(replica, run) for replica in replicas]
        assert {(end["status"], end["stop"]["reason"]["message"]) for end in ends} == {("stopped", "from the third")}
        told = [[(event["seq"], event["type"]) for event in watcher.ended()] for watcher in watchers]
        assert told[0] == told[1] == told[2]
        assert [seq for seq, _ in told[0]] == list(range(1, len(told[0]) + 1))
        assert told[0][-1][1] == "done"

    def test_a_hold_and_a_bulk_stop_on_one_replica_are_for_all(self, replicas, tmp_path):
        first, second, third = replicas
        runs = [start(replica, "forever", tmp_path / "marks", owner="me") for replica in (first, second)]
        done = ask(third, "POST", "/stops", json={"selector": {"owner": "me"}, "hold": True})
        assert done.status_code == 200, done.text
        assert {over(third, run)["status"] for run in runs} == {"stopped"}
        body = {"agent": "forever", "owner": "me"}
        assert [ask(replica, "POST", "/runs", json=body).status_code for replica in replicas] == [423] * 3

    def test_one_that_is_terminated_drains_while_the_others_serve_and_the_runs_of_one_that_dies_end(
        self, store, tmp_path
    ):
        with Replicas([store] * 3, TTL) as replicas:
            self._terminate(*replicas, tmp_path)
            self._kill(*replicas[1:], tmp_path)

    def _terminate(self, first, second, third, tmp_path):
        slow = started(first, start(first, "tidy", tmp_path / "slow"))
        other = started(second, start(second, "forever", tmp_path / "other"))
        first.signal(signal.SIGTERM)
        wait_until(lambda: record_of(second, slow)["stop"], DEADLINE)
        new = started(third, start(third, "forever", tmp_path / "new"))  # meanwhile
        assert record_of(third, other)["status"] == "running"
        code, said = first.wait()
        assert code == 0, said
        end = record_of(second, slow)
        assert (end["status"], end["stop"]["reason"]["kind"], end["outcome"]["clean"]) == ("stopped", "shutdown", True)
        stop(third, other)
        assert over(third, other)["status"] == "stopped"
        assert record_of(second, new)["status"] == "running"

    def _kill(self, victim, survivor, tmp_path):
        failed = started(victim, start(victim, "forever", tmp_path / "a"))
        stopping = started(victim, start(victim, "stubborn", tmp_path / "b"))
        untouched = started(survivor, start(survivor, "forever", tmp_path / "c"))
        watcher = Watcher(survivor, failed)
        assert stop(survivor, stopping)["answer"] == "accepted"
        victim.kill()
        end = over(survivor, failed)
        assert (end["status"], end["outcome"]["error"]["type"]) == ("failed", "WorkerLost")
        assert watcher.ended()[-1]["type"] == "done"
        assert over(survivor, stopping)["status"] == "stopped"  # proven dead, and a stop was pending
        assert record_of(survivor, untouched)["status"] == "running"

    def test_a_replica_that_is_frozen_is_answered_for_by_the_others(self, replicas, store, tmp_path):
        """The stop is in the store, and takes effect when the process goes on."""
        first, second, third = replicas
        run = started(first, start(first, "forever", tmp_path / "marks"))
        with self.frozen(first, store):
            receipt = stop(second, run)
            assert (receipt["answer"], receipt.get("acknowledgedAt")) == ("accepted", None)
            assert record_of(third, run)["status"] == "stopping"
        assert over(third, run)["status"] == "stopped"

    @contextlib.contextmanager
    def frozen(self, replica, url):
        """Freeze a replica."""
        replica.freeze()
        try:
            yield
        finally:
            replica.thaw()
