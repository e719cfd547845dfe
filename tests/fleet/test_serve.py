"""`stoppable serve` on a database: replicas that die with stops pending, and a database that is away."""

import signal
import time

import pytest
from tests.waiting import wait_until

from .replicas import SECONDS, Replica


@pytest.fixture
def replica(tmp_path):
    """Start a replica, which ends with the test."""
    started = []

    def start(url, **options):
        started.append(Replica(url, tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_the_runs_of_a_replica_that_was_killed_end(replica, url):
    """Its lock proves its death on the same machine: failed, or stopped if a stop was pending."""
    here = replica(url, ttl=300)  # its lease lasts longer than the test: only its lock can say that it is dead
    there = replica(url, ttl=15)
    run, stopping = here.start(), here.start()
    here.freeze()
    assert there.stop(stopping).status_code == 202
    here.signal(signal.SIGKILL)
    here.ends()
    records = [there.over(each) for each in (run, stopping)]
    assert [record["status"] for record in records] == ["failed", "stopped"]
    assert records[0]["outcome"]["error"]["type"] == "WorkerLost"
    assert there.status(there.start()) == "running"
    assert "secret" not in here.log.read_text() + there.log.read_text()


def test_while_the_database_is_away_local_stops_work_and_are_kept_when_it_is_back(replica, own_server, tmp_path):
    here = replica(f"{own_server.url}?locks={tmp_path / 'locks'}", ttl=60)
    run, other = here.start(), here.start()
    own_server.kill()
    refused = here.http.post("/runs", json={"agent": "forever"})
    assert refused.status_code == 503, refused.text
    assert "store_unavailable" in refused.text
    assert "see whether it is up" in refused.text
    assert "secret" not in refused.text
    stopped = here.stop(run)
    assert stopped.status_code == 503
    assert "were told to stop anyway" in stopped.text
    assert here.http.get("/readyz").status_code == 503
    assert here.http.get("/healthz").status_code == 200
    own_server.start()
    wait_until(here.is_ready, SECONDS)
    assert here.over(run)["status"] == "stopped"
    assert here.status(other) == "running"
    assert here.status(here.start()) == "running"


def test_the_password_in_the_environment_reaches_the_database_and_no_agent(replica, own_server, tmp_path):
    without = own_server.url.replace(":secret@", "@")
    assert without != own_server.url
    here = replica(
        f"{without}?locks={tmp_path / 'locks'}",
        PGPASSWORD="secret",
        DATABASE_URL=own_server.url,
        OTHER_URL="postgresql://u:other@h/d",
    )
    run = here.http.post("/runs", json={"agent": "environment"}).json()["id"]
    seen = here.over(run)["outcome"]["result"]
    assert not {"STOPPABLE_STORE", "PGPASSWORD", "DATABASE_URL"} & set(seen["here"])
    assert "secret" not in str(seen)
    assert "OTHER_URL=postgresql://u:other@h/d" in seen["command"]
    own_server.kill()
    own_server.start()
    wait_until(here.is_ready, SECONDS)  # it has connected again
    assert here.over(run)["status"] == "completed"


def test_while_the_database_is_away_a_read_fails_as_fast_as_a_start(replica, own_server, tmp_path):
    here = replica(f"{own_server.url}?locks={tmp_path / 'locks'}", ttl=60)
    run = here.start()
    own_server.kill()
    for path in (f"/runs/{run}", "/runs", f"/runs/{run}/tree", "/holds") * 3:
        began = time.monotonic()
        assert here.http.get(path).status_code == 503
        assert time.monotonic() - began < 3, "the time-out of a connection is 5 s"
    own_server.start()
    wait_until(here.is_ready, SECONDS)
    wait_until(lambda: here.http.get(f"/runs/{run}").status_code == 200, SECONDS)
