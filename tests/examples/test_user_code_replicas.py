"""Two processes of the app on the same files: each shows the runs of both, and stops them."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.process_states import is_alive

from .test_user_code_stops import AWAITS, SUBPROCESS, begun
from .user_code import Running


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    first, second = Running(folder, "--grace", "1"), Running(folder, "--grace", "1")
    yield first, second
    first.close()
    second.close()


def test_a_run_is_followed_and_stopped_through_another_replica(replicas, folder):
    first, second = replicas
    run_id = begun(first, SUBPROCESS, folder)
    pid = int((folder / "pid").read_text())
    frames = second.frames(run_id)
    assert next(frames)[:2] == ("run_id", {"runId": run_id, "status": "running"})
    assert [run["status"] for run in second.http.get("/runs").json()["runs"] if run["runId"] == run_id] == ["running"]
    answer = second.stop(run_id)
    assert (answer.status_code, answer.json()["via"]) == (202, "persisted_remote")
    *_, (name, done, _) = frames
    assert (name, done["outcome"]) == ("done", "stopped")
    assert first.ended(run_id) == second.ended(run_id)
    assert not is_alive(pid)
    assert second.stop(run_id).json() == {"runId": run_id, "status": "stopped"}


def test_a_stream_that_broke_off_goes_on_at_another_replica(replicas, folder):
    first, second = replicas
    run_id = begun(first, AWAITS, folder)
    frames = first.frames(run_id)
    seen = [next(frames) for _ in range(3)]  # run_id and two more
    frames.close()
    assert first.get(run_id)["status"] == "running"  # whoever leaves a stream leaves the run alone
    first.stop(run_id)
    rest = list(second.frames(run_id, after=seen[-1][2]))
    assert [*seen[1:], *rest[1:]] == list(first.frames(run_id))[1:]


def test_a_replica_that_shuts_down_stops_its_own_runs_and_the_other_one_says_so(replicas, folder):
    _, second = replicas
    third = Running(second.folder, "--grace", "1")
    run_id = begun(third, AWAITS, folder)
    third.close()
    record = second.ended(run_id)
    assert record["status"] == "stopped"
    assert (folder / "closed").exists()


def test_the_quota_of_a_user_is_that_of_all_replicas(tmp_path):
    """Requests come at once and at both, and never get more runs than are allowed."""
    replicas = [Running(tmp_path, "--in-process", "--grace", "0.2") for _ in range(2)]
    try:
        (tmp_path / "runs").mkdir()
        body = {"code": AWAITS, "inputDict": {"folder": str(tmp_path / "runs")}}

        def start(number):
            return replicas[number % 2].http.post("/agents/run-code/start", json=body)

        with ThreadPoolExecutor(24) as threads:
            answers = list(threads.map(start, range(24)))
        runs = [answer.json()["runId"] for answer in answers if answer.status_code == 202]
        assert {answer.status_code for answer in answers} == {202, 429}
        assert 1 <= len(runs) <= 10
        while len(runs) < 10:  # requests at the same moment may be refused for each other
            runs.append(start(len(runs)).json()["runId"])
        assert [start(number).status_code for number in range(2)] == [429, 429]
        replicas[0].stop(runs[0], mode="immediate")
        replicas[1].ended(runs[0])
        runs.append(start(1).json()["runId"])
        for run in runs:
            replicas[0].stop(run, mode="immediate")
        for run in runs:
            replicas[0].ended(run)
    finally:
        for replica in replicas:
            replica.close()
