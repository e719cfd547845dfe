"""While the database is away: what runs in a replica can be stopped there, and nothing that was answered is lost."""

import httpx
from tests.faults.replica_cases import ask, over, record_of, start, started, stop
from tests.faults.replicas import DEADLINE, Replicas
from tests.waiting import wait_until

TTL = 60.0  # longer than the database is away here


def status(replica, path):
    try:
        return ask(replica, "GET", path).status_code
    except httpx.HTTPError:
        return None


def test_local_stops_work_starts_are_refused_and_all_is_reconciled_when_it_is_back(own_server, tmp_path):
    store = f"{own_server.url}?locks={tmp_path / 'locks'}"
    with Replicas([store] * 2, TTL) as (first, second):
        answered = started(first, start(first, "tidy", tmp_path / "answered"))
        local = started(first, start(first, "forever", tmp_path / "local"))
        kept = started(second, start(second, "forever", tmp_path / "kept"))
        assert stop(second, answered)["answer"] == "accepted"
        own_server.kill()

        refused = ask(first, "POST", "/runs", json={"agent": "forever"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
        assert ask(first, "POST", f"/runs/{local}/stop", json={"reason": "now"}).status_code == 503  # not durable
        marks = tmp_path / "local"
        size = wait_until(lambda: _stands_still(marks), DEADLINE)  # and yet it has ended
        assert status(first, "/healthz") == 200
        wait_until(lambda: status(first, "/readyz") == 503, DEADLINE)

        own_server.start()
        first.ready()
        second.ready()
        assert over(second, local)["status"] == "stopped"
        assert over(second, answered)["status"] == "stopped"
        assert marks.stat().st_size == size
        assert record_of(first, kept)["status"] == "running"
        stop(first, kept)
        assert over(second, kept)["status"] == "stopped"


def _stands_still(marks):
    size = marks.stat().st_size
    try:
        wait_until(lambda: marks.stat().st_size > size, 0.5)  # it leaves a mark as often as it can
    except AssertionError:
        return size
    return 0
