"""What clients and agent code of the app rely on: its routes, records, events, and the names in the code of users."""

import json

import httpx
import pytest

from stoppable.testing.model_server import ModelServer, Pause, Reply

from ..waiting import wait_until
from .test_user_code_stops import AWAITS, BACKGROUND, RETURNS, begun
from .user_code import DEADLINE, Running, wait_for

SUMMARY = {"runId", "agentId", "agentName", "status", "startedAt", "completedAt", "inputDict", "error"}
FULL = SUMMARY | {"events", "result", "schemaWarnings", "opsLog"}
EVENT = {"type", "ts", "agent_name", "depth", "source"}

STORES = """
async def run(input_dict, tools):
    data_store.set("greeting", "hello")
    notes = data_store.use_namespace("notes")
    notes.set_many({"a": 1, "b": 2})
    print("two", "words")
    answer = [data_store.get("greeting"), data_store.get("nothing", "default"), notes.get_many(["a", "c"])]
    answer += [notes.list_keys("b"), data_store.list_namespaces(), notes.get_all(), notes.delete("a"), notes.clear()]
    data_store.delete_many(["greeting"])
    return answer
"""

FAILS = """
async def run(input_dict, tools):
    raise KeyError("no such thing")
"""


def types(events):
    return [event["type"] for event in events]


def test_a_record_has_the_fields_that_clients_know(app):
    run_id = app.start(STORES, friendlyName="writer", agentId="w-1", input={"n": 1}, outputSchema={"type": "object"})
    record = app.ended(run_id)
    assert record.keys() >= FULL
    assert (record["runId"], record["agentId"], record["agentName"]) == (run_id, "w-1", "writer")
    assert (record["status"], record["inputDict"], record["error"]) == ("success", {"n": 1}, None)
    assert record["startedAt"] < record["completedAt"]
    assert record["result"] == ["hello", "default", {"a": 1}, ["b"], ["default", "notes"], {"a": 1, "b": 2}, True, 1]
    assert record["schemaWarnings"] == ["result is list, not object"]
    assert [entry["op"] for entry in record["opsLog"]][:3] == ["set", "set", "set"]
    assert {"op": "get", "namespace": "default", "agent": "writer", "key": "nothing", "found": False}.items() <= (
        record["opsLog"][4].items()
    )
    events = record["events"]
    assert all(event.keys() >= EVENT for event in events)
    assert types(events)[:2] == ["agent_start", "data_store"]
    assert types(events)[-1] == "agent_end"
    assert {"type": "stdout", "message": "two words", "source": "stdout"}.items() <= events[
        types(events).index("stdout")
    ].items()


def test_a_list_has_the_runs_of_a_user_and_of_an_agent_without_what_those_called(app):
    app.save("called", RETURNS)
    first = app.start(calls("called"), gofannonAgents=["called"], agentId="caller", input={"q": 1})
    second = app.start(FAILS, agentId="fails")
    assert app.ended(first)["result"] == {"answer": 42}
    assert app.ended(second)["error"] == "KeyError: 'no such thing'"
    listed = app.http.get("/runs").json()["runs"]
    assert [run["runId"] for run in listed[:2]] == [second, first]
    assert listed[0].keys() >= SUMMARY
    assert not listed[0].keys() & {"events", "result", "opsLog"}
    assert (listed[1]["inputDict"], listed[0]["error"]) == ({"q": 1}, "KeyError: 'no such thing'")
    only = app.http.get("/runs", params={"agent_id": "fails"}).json()["runs"]
    assert {run["agentId"] for run in only} == {"fails"}


def test_an_unknown_run_and_that_of_another_user_are_both_not_found(app):
    run_id = app.start(RETURNS)
    app.ended(run_id)
    with httpx.Client(base_url=app.url, timeout=DEADLINE, cookies={"user": "bob"}) as bob:
        for there in (run_id, "nobody"):
            for answer in (
                bob.get(f"/runs/{there}"),
                bob.get(f"/runs/{there}/stream"),
                bob.post(f"/runs/{there}/stop"),
            ):
                assert (answer.status_code, answer.json()) == (404, {"detail": "Run not found"})
        assert bob.get("/runs").json() == {"runs": []}


def test_a_stream_is_replayed_and_resumed(app):
    run_id = app.start(STORES)
    app.ended(run_id)
    with app.http.stream("GET", f"/runs/{run_id}/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = response.read()
    assert b"\r" not in raw
    frames = list(app.frames(run_id))
    names = [name for name, _, _ in frames]
    assert (names[0], set(names[1:-1]), names[-1]) == ("run_id", {"trace", "status"}, "done")
    assert frames[0][1] == {"runId": run_id, "status": "success"}
    assert [data for name, data, _ in frames if name == "trace"] == app.get(run_id)["events"]
    assert frames[-1][1].keys() >= {"outcome", "result", "error", "schemaWarnings", "opsLog"}
    assert list(app.frames(run_id, after=frames[5][2])) == [frames[0], *frames[6:]]
    over = app.http.get(f"/runs/{run_id}/stream", headers={"Last-Event-ID": frames[-1][2]})
    assert over.status_code == 204


def test_a_run_is_followed_by_the_request_that_starts_it_and_outlives_it(app, folder):
    body = {"code": BACKGROUND, "inputDict": {"folder": str(folder)}, "tools": {}}
    with app.http.stream("POST", "/agents/run-code/stream", json=body) as response:
        frames = _frames(response)
        name, data = next(frames)
        assert (name, data["status"]) == ("run_id", "running")
        assert next(data for name, data in frames if name == "trace")["type"] == "agent_start"
        wait_for(folder / "began")
    assert app.get(data["runId"])["status"] == "running"
    assert app.stop(data["runId"]).status_code == 202
    assert app.ended(data["runId"])["status"] == "stopped"


def _frames(response):
    name = None
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def test_a_run_can_be_waited_for(app):
    answer = app.http.post("/agents/run-code", json={"code": RETURNS, "inputDict": {}, "tools": {}}).json()
    assert (answer["result"], answer["error"], answer["outcome"]) == ({"answer": 42}, None, "success")
    assert types(answer["trace"]) == ["agent_start", "agent_end"]
    answer = app.http.post("/agents/run-code", json={"code": "x = 1", "inputDict": {}, "tools": {}}).json()
    assert answer["error"].startswith("ValueError: Code did not define an 'async def run")
    assert types(answer["trace"]) == ["agent_start", "error", "agent_end"]


def test_a_result_without_a_json_form_is_told_as_text(app):
    code = "import pathlib\nasync def run(input_dict, tools):\n    return {1: pathlib.PurePosixPath('/a')}"
    assert app.ended(app.start(code))["result"] == {"1": "/a"}


# The names in the code of users

LOOKS = """
import pathlib

async def run(input_dict, tools):
    folder = pathlib.Path(input_dict["folder"])
    assert not should_stop() and not current_token().is_stopped()
    check_should_stop()
    reset_token(bind_token(current_token()))
    current_token().set_on_stop(lambda: (folder / "told").touch())
    (folder / "began").touch()
    while not should_stop():
        await asyncio.sleep(0.01)
    assert current_token().is_stopped()
    try:
        check_should_stop()
    except AgentStopped:
        (folder / "raised").touch()
    while not (folder / "told").exists():  # by another thread, for which the run does not wait
        await asyncio.sleep(0.01)
    try:
        data_store.set("after", "the stop")
    except BaseException as error:
        (folder / type(error).__name__).touch()
        raise
"""

STOPS_ITSELF = """
async def run(input_dict, tools):
    current_token().request_stop()
    try:
        await call_llm("scripted", "demo", [], {})
    except Exception:
        return "survived"
"""


def test_agent_code_notices_the_stop_by_the_names_that_it_has_always_used(app, folder):
    run_id = begun(app, LOOKS, folder)
    app.stop(run_id)
    record = app.ended(run_id)
    assert record["status"] == "stopped"
    assert {"told", "raised", "AgentStopped"} <= {path.name for path in folder.iterdir()}
    assert record["opsLog"] is None
    assert record["events"][-1]["outcome"] == "stopped"


def test_a_run_may_stop_itself_and_no_handler_of_exceptions_survives_it(app):
    assert app.ended(app.start(STOPS_ITSELF))["status"] == "stopped"


# Chained agents


def calls(name, survive=False):
    if survive:
        return f"""
async def run(input_dict, tools):
    try:
        return await gofannon_client.call({name!r}, input_dict)
    except Exception as error:
        return "survived " + type(error).__name__
"""
    return f"""
async def run(input_dict, tools):
    return await gofannon_client.call({name!r}, input_dict)
"""


def called(events):
    return [event["run_id"] for event in events if event["type"] == "agent_start" and event["depth"] == 2]


def chained(app, folder, **options):
    """Start an agent that has called another, and return the ids of both runs."""
    app.save("inner", AWAITS)
    outer = app.start(calls("inner", **options), gofannonAgents=["inner"], input={"folder": str(folder)})
    wait_for(folder / "began")
    [inner] = wait_until(lambda: called(app.get(outer)["events"]), DEADLINE)
    return outer, inner


def test_a_stop_of_the_outer_agent_stops_both(app, folder):
    outer, inner = chained(app, folder)
    app.stop(outer)
    record = app.ended(outer)
    assert (record["status"], app.get(inner)["status"]) == ("stopped", "stopped")
    ends = [(event["agent_name"], event["outcome"]) for event in record["events"] if event["type"] == "agent_end"]
    assert ends == [("inner", "stopped"), ("sandbox_agent", "stopped")]
    assert (folder / "closed").exists()


@pytest.mark.parametrize("survive", [True, False])
def test_a_stop_of_the_inner_agent_is_an_error_that_the_outer_one_may_survive(app, folder, survive):
    outer, inner = chained(app, folder, survive=survive)
    assert app.stop(inner).status_code == 202
    record = app.ended(outer)
    told = app.get(inner)
    assert (told["status"], told["agentName"], told["inputDict"]) == ("stopped", "inner", {"folder": str(folder)})
    if survive:
        assert (record["status"], record["result"]) == ("success", "survived RunStopped")
    else:
        assert record["status"] == "error"
        assert record["error"].startswith("RunStopped: ")


def test_an_agent_calls_only_those_that_it_imported(app):
    app.save("fails", FAILS)
    app.save("middle", calls("fails"), calls=["fails"])
    assert app.ended(app.start(calls("middle"), gofannonAgents=["middle"]))["error"] == "KeyError: 'no such thing'"
    record = app.ended(app.start(calls("fails"), gofannonAgents=["middle"]))
    assert record["error"] == "ValueError: Gofannon agent 'fails' not found or not imported for this run."
    answer = app.http.post("/agents/run-code/start", json={"code": RETURNS, "inputDict": {}, "gofannonAgents": ["no"]})
    assert answer.status_code == 422
    assert {agent["agentId"] for agent in app.http.get("/agents").json()} >= {"fails", "middle"}


# A call of a model that is in flight

ASKS = """
async def run(input_dict, tools):
    answer, _ = await call_llm("openai", "gpt", [{"role": "user", "content": "hi"}], {})
    print("answered", answer)
    await call_llm("openai", "gpt", [{"role": "user", "content": "again"}], {})
    return "success"
"""


def test_a_call_of_a_model_in_flight_finishes_and_the_next_one_does_not_begin(tmp_path):
    pause = Pause()
    with ModelServer(Reply("hello there", pause=pause)) as model:
        patient = Running(tmp_path, "--grace", "60", "--model-url", model.url)
        try:
            run_id = patient.start(ASKS, llmSettings={"perModel": {"openai/gpt": {"maxTokens": 7}}})
            asked = model.wait_for_request(within=DEADLINE)
            assert asked.body["max_tokens"] == 7
            answer = patient.stop(run_id)
            assert answer.json()["inFlight"] == ["llm:openai/gpt"]
            assert patient.get(run_id)["stopping"]
            pause.end()
            record = patient.ended(run_id)
        finally:
            pause.end()
            patient.close()
        assert record["status"] == "stopped"
        assert [event.get("message") for event in record["events"] if event["type"] == "stdout"] == [
            "answered hello there"
        ]
        assert len(model.requests) == 1
