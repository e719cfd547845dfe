"""What the code of a user may use, and what it must not see."""

import httpx
import pytest

from .test_user_code_stops import AWAITS, BACKGROUND, RETURNS
from .user_code import Running, wait_for


def code(*lines):
    return "\n    ".join(["async def run(input_dict, tools):", *lines])


in_processes = pytest.mark.parametrize("app", ["process"], indirect=True)
on_threads = pytest.mark.parametrize("app", ["thread"], indirect=True)


@in_processes
def test_memory_is_limited(app):
    record = app.ended(app.start(code("return len(bytearray(8 * 1024**3))")))
    assert (record["status"], record["error"].partition(":")[0]) == ("error", "MemoryError")


@in_processes
def test_a_file_cannot_fill_the_disk(app, tmp_path):
    lines = ["with open(input_dict['path'], 'wb') as file:", "    file.truncate(10 * 1024**3)"]
    record = app.ended(app.start(code(*lines), input={"path": str(tmp_path / "large")}))
    assert record["status"] == "error"
    assert record["error"].startswith("OSError: ")


def test_a_result_that_is_too_large_is_an_error(app):
    record = app.ended(app.start(code("return 'x' * 600_000")))
    assert (record["status"], record["error"].partition(":")[0]) == ("error", "OutputTooLarge")


@pytest.mark.parametrize(
    "lines", [["for n in range(10_000):", "    print(n)"], ["for n in range(100):", "    print('x' * 10_000)"]]
)
def test_what_is_printed_is_cut_and_the_run_goes_on(app, lines):
    record = app.ended(app.start(code(*lines, "return 'done'")))
    kinds = [event["type"] for event in record["events"]]
    assert (record["status"], record["result"]) == ("success", "done")
    assert kinds.count("trace_truncated") == 1
    assert kinds.count("stdout") < 2_000


@in_processes
def test_what_is_written_past_print_stays_out_of_the_log_of_the_server(app):
    lines = ["import os, subprocess", "os.write(2, b'forged line')", "subprocess.run(['echo', 'forged'])", "return 1"]
    assert app.ended(app.start(code(*lines)))["result"] == 1
    assert not any("forged" in line for line in app.said())


@in_processes
def test_the_environment_of_the_server_is_not_that_of_its_users(app):
    lines = ["import os", "return [os.environ.get(name) for name in ('A_SECRET', 'TOKEN', 'PATH')]"]
    variables = [{"key": "TOKEN", "value": "hidden-word"}]
    run_id = app.start(code(*lines, "# x"), envVars=variables)
    secret, token, path = app.ended(run_id)["result"]
    assert (secret, token, bool(path)) == (None, "hidden-word", True)
    record = app.http.get(f"/stoppable/runs/{run_id}").json()
    assert "hidden-word" not in str(record["input"])
    assert set(record["omitted"]) == {"job"}


def test_variables_need_a_process(app):
    body = {"code": RETURNS, "inputDict": {}, "envVars": [{"key": "A", "value": "b"}]}
    expected = 202 if app.isolation == "process" else 422
    answer = app.http.post("/agents/run-code/start", json=body)
    assert answer.status_code == expected
    if expected == 202:
        app.ended(answer.json()["runId"])


def test_a_run_that_takes_too_long_is_stopped_and_the_record_says_by_what(tmp_path):
    short = Running(tmp_path, "--grace", "0.2", "--seconds", "0.5")
    try:
        record = short.ended(short.start(AWAITS, input={"folder": str(tmp_path)}))
    finally:
        short.close()
    assert record["status"] == "stopped"
    assert "0.5" in record["error"]


@on_threads  # the same rule for both, but ten processes take long to start
def test_a_user_cannot_have_any_number_of_runs(app, tmp_path):
    with httpx.Client(base_url=app.url, timeout=30, cookies={"user": "eager"}) as eager:
        runs = []
        for number in range(10):
            (tmp_path / str(number)).mkdir()
            body = {"code": BACKGROUND, "inputDict": {"folder": str(tmp_path / str(number))}}
            runs.append(eager.post("/agents/run-code/start", json=body).json()["runId"])
        assert eager.post("/agents/run-code/start", json=body).status_code == 429
        for number, run in enumerate(runs):
            wait_for(tmp_path / str(number) / "began")
            eager.post(f"/runs/{run}/stop", json={"mode": "immediate"})
        for run in runs:
            with eager.stream("GET", f"/runs/{run}/stream") as response:
                assert b'"outcome":"stopped"' in response.read()
        assert eager.post("/agents/run-code", json={"code": RETURNS}).json()["outcome"] == "success"


def test_a_page_of_another_origin_cannot_run_or_stop_anything(app):
    body = {"code": RETURNS, "inputDict": {}}
    answer = app.http.post("/agents/run-code/start", json=body, headers={"Origin": "https://elsewhere.example"})
    assert answer.status_code == 403
    assert app.http.get("/runs", headers={"Host": "rebound.example"}).status_code == 400
    assert app.http.get("/runs", headers={"Origin": app.url}).status_code == 200
