"""What a stream shows in each mode, and how a client comes back to it."""

import httpx

from ..openai_api.agents import GATES
from .conftest import (
    DEADLINE,
    Reader,
    begin,
    cancel_many,
    connected,
    ended,
    events,
    new_thread,
    record,
    said,
    text_of,
    wait_until,
)

EVERY = ["values", "messages-tuple", "messages", "updates", "custom"]


def test_the_values_of_a_thread_are_those_before_and_after_the_answer():
    with connected() as (_, client):
        parts = list(client.runs.stream(new_thread(client), "echo", input=said("hello")))
        assert events(parts) == ["metadata", "values", "values"]
        assert [[one["content"] for one in part.data["messages"]] for part in parts[1:]] == [
            ["hello"],
            ["hello", "hello "],
        ]


def test_each_mode_shows_its_own():
    with connected() as (_, client):
        thread = new_thread(client)
        parts = list(client.runs.stream(thread, "echo", input=said("one two"), stream_mode=EVERY))
        assert text_of(parts) == "one two "
        chunk, about = next(part.data for part in parts if part.event == "messages")
        assert chunk["type"] == "AIMessageChunk"
        assert (about["langgraph_node"], about["thread_id"]) == ("echo", thread)
        [whole] = next(part.data for part in parts if part.event == "messages/complete")
        partial = [part.data[0]["content"] for part in parts if part.event == "messages/partial"]
        assert whole["content"] == partial[-1] == "one two "
        assert {chunk["id"]} == {whole["id"]}
        [update] = [part.data for part in parts if part.event == "updates"]
        assert update["echo"]["messages"] == [whole]
        assert parts[-1].data["messages"][-1] == whole


def test_what_an_agent_reports_is_custom():
    with connected() as (_, client):
        parts = list(client.runs.stream(None, "reporting", input=said("x"), stream_mode="custom"))
        assert events(parts) == ["metadata", "custom"]
        assert parts[1].data == {"name": "searching", "data": {"pages": 3}}


def test_a_run_that_fails_ends_with_its_error():
    with connected() as (_, client):
        thread = new_thread(client)
        parts = list(client.runs.stream(thread, "failing", input=said("x")))
        assert (parts[-1].event, parts[-1].data) == (
            "error",
            {"error": "ValueError", "message": "the tool is broken"},
        )
        assert client.runs.join(thread, parts[0].data["run_id"]) == {"__error__": parts[-1].data}
        [task] = client.threads.get_state(thread)["tasks"]
        assert task["error"] == "ValueError: the tool is broken"
        assert client.threads.get(thread)["status"] == "error"


def test_a_stream_can_be_joined_from_its_start_or_after_any_event():
    with connected() as (_, client):
        thread = new_thread(client)
        parts = list(client.runs.stream(thread, "echo", input=said("a b c d"), stream_mode=EVERY))
        run_id = parts[0].data["run_id"]
        assert list(client.runs.join_stream(thread, run_id)) == parts
        assert list(client.runs.join_stream(thread, run_id, last_event_id="-1")) == parts
        for number, part in enumerate(parts):
            assert list(client.runs.join_stream(thread, run_id, last_event_id=part.id)) == parts[number + 1 :]


def test_other_modes_than_those_of_the_start_have_the_same_places():
    with connected() as (_, client):
        thread = new_thread(client)
        parts = list(client.runs.stream(thread, "echo", input=said("a b"), stream_mode=EVERY))
        run_id = parts[0].data["run_id"]
        tuples = list(client.runs.join_stream(thread, run_id, stream_mode="messages-tuple"))
        assert tuples[1:] == [part for part in parts if part.event == "messages"]
        values = list(client.runs.join_stream(thread, run_id, stream_mode=["values", "updates"]))
        assert values[1:] == [part for part in parts if part.event in {"values", "updates"}]


def test_a_client_that_comes_back_gets_the_rest_while_the_run_goes_on():
    with connected() as (service, client):
        thread, run_id = begin(client, "waits", said("go"), stream_mode=["values", "messages-tuple"])
        stream = client.runs.join_stream(thread, run_id)
        seen = [next(stream)]
        while seen[-1].event != "messages":
            seen.append(next(stream))
        stream.close()
        reader = Reader(client.runs.join_stream(thread, run_id, last_event_id=seen[-1].id))
        wait_until(lambda: len(service.app.state.backend.streams) == 1)
        GATES.release.set()
        whole = [*seen, *reader.finish()]
        assert text_of(whole) == "first second third"
        assert whole == list(client.runs.join_stream(thread, run_id))


def test_the_answer_says_where_its_stream_goes_on():
    with connected() as (service, client):
        thread = new_thread(client)
        body = {"assistant_id": "echo", "input": said("x")}
        response = httpx.post(f"{service.url}/lg/threads/{thread}/runs/stream", json=body, timeout=DEADLINE)
        run_id = response.headers["stoppable-run-id"]
        assert response.headers["content-location"] == f"/threads/{thread}/runs/{run_id}"
        assert response.headers["location"] == f"/threads/{thread}/runs/{run_id}/stream"
        assert response.headers["content-type"].startswith("text/event-stream")


def test_the_stream_of_a_run_that_waits_begins_with_what_the_one_before_has_said():
    with connected() as (_, client):
        thread, _ = begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        reader = Reader(client.runs.stream(thread, "echo", input=said("next")))
        wait_until(lambda: len(client.runs.list(thread)) == 2)
        GATES.release.set()
        parts = reader.finish()
        assert [one["content"] for one in parts[1].data["messages"]] == ["go", "first second third", "next"]


def test_a_run_without_a_thread_leaves_none():
    with connected() as (service, client):
        values = client.runs.wait(None, "echo", input=said("once"))
        assert values["messages"][-1]["content"] == "once "
        run = client.runs.create(None, "waits", input=said("go"))
        wait_until(GATES.reached.is_set)
        cancel_many(client, status="all")
        assert ended(client, run["thread_id"], run["run_id"])["status"] == "interrupted"
        assert client.threads.search() == []
        client.runs.wait(None, "echo", input=said("kept"), on_completion="keep")
        assert len(client.threads.search()) == 1
        assert record(service, run["run_id"]).status == "stopped"
