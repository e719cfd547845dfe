"""What is refused: as an error of the API in JSON, never with a 500, and nothing was started."""

import json

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..openai_api.agents import GATES
from .conftest import ALONE, DEADLINE, begin, connected, ended, new_thread, runs, said, serving, wait_until

JSON = {"Content-Type": "application/json"}
DEEP = "[" * 900 + "]" * 900


@pytest.fixture(scope="module")
def open_server():
    with (
        serving() as service,
        httpx.Client(base_url=f"{service.url}/lg", timeout=DEADLINE, headers=ALONE) as connection,
    ):
        service.connection = connection
        for thread in ("one", "t"):
            assert connection.post("/threads", json={"thread_id": thread}).status_code == 200
        yield service


def send(service, path, body, method="POST", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return service.connection.request(method, path, content=content, headers={**JSON, **headers})


def assert_refused(response, status):
    assert response.status_code == status, response.text
    error = response.json()
    assert error["detail"]
    assert isinstance(error["code"], str)


def good(**changes):
    """Return a body with some of its fields changed."""
    return {"assistant_id": "echo", "input": said("x"), **changes}


def of(*messages):
    """Return a body with some messages before the question."""
    return good(input={"messages": [*messages, {"role": "user", "content": "x"}]})


BAD = {
    "no json": b"{",
    "nothing": b"",
    "not utf-8": b'{"assistant_id": "\xff"}',
    "half a surrogate": b'{"assistant_id": "\\ud800"}',
    "deep": b'{"assistant_id": "echo", "input": %b}' % DEEP.encode(),
    "very deep": b"[" * 100_000,
    "not a number": b'{"assistant_id": NaN}',
    "not an object": b"[]",
    "null": b"null",
    "no assistant": {"input": said("x")},
    "an empty assistant": good(assistant_id=""),
    "assistant is a number": good(assistant_id=5),
    "no input": {"assistant_id": "echo"},
    "input is a number": good(input=5),
    "no message": good(input={"messages": []}),
    "messages is a number": good(input={"messages": 5}),
    "messages is null": good(input={"messages": None}),
    "only the agent has spoken": good(input={"messages": [{"type": "ai", "content": "x"}]}),
    "a message is a number": of(5),
    "a message without a role": of({"content": "x"}),
    "another role": of({"role": "nobody", "content": "x"}),
    "a role that is a number": of({"role": 5, "content": "x"}),
    "an id that is a number": of({"role": "user", "content": "x", "id": 5}),
    "a content that is a number": of({"role": "user", "content": 5}),
    "a part that is a number": of({"role": "user", "content": [5]}),
    "an image": good(input={"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}),
    "three words": of(["user", "a", "b"]),
    "arguments that nobody takes": good(input={"other": 1}),
    "an argument of another type": good(assistant_id="typed", input={"count": "many"}),
    "metadata is a text": good(metadata="x"),
    "another mode": good(stream_mode=["whispers"]),
    "mode is a number": good(stream_mode=5),
    "another strategy": good(multitask_strategy="queue"),
    "another word for leaving": good(on_disconnect="never"),
    "a command": good(command={"resume": "yes"}),
    "a breakpoint": good(interrupt_before=["tools"]),
    "a later start": good(after_seconds=60),
    "a webhook": good(webhook="http://localhost"),
    "a checkpoint that is a text": good(checkpoint="x"),
    "a checkpoint whose id is a number": good(checkpoint={"checkpoint_id": 5}),
}


@pytest.mark.parametrize("way", ["", "/stream", "/wait"])
@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_start_is_refused(open_server, body, way):
    before = len(runs(open_server))
    assert_refused(send(open_server, f"/threads/one/runs{way}", body), 422)
    assert len(runs(open_server)) == before, "nothing was started"


OTHERS = {
    "a thread with a bad id": ("/threads", {"thread_id": "a/b"}),
    "a thread whose id is a number": ("/threads", {"thread_id": 5}),
    "a long id": ("/threads", {"thread_id": "x" * 200}),
    "a thread with states": ("/threads", {"supersteps": [{"updates": []}]}),
    "metadata of a thread": ("/threads", {"metadata": []}),
    "a search with values": ("/threads/search", {"values": {"a": 1}}),
    "a search with no limit": ("/threads/search", {"limit": 0}),
    "a search for a status": ("/threads/search", {"status": "tired"}),
    "a search before the first": ("/threads/search", {"offset": -1}),
    "assistants": ("/assistants/search", {"limit": "all"}),
    "a checkpoint that is missing": ("/threads/one/state/checkpoint", {}),
    "a history before a number": ("/threads/one/history", {"before": 5}),
    "a cancel of nothing": ("/runs/cancel", {}),
    "a cancel of runs without a thread": ("/runs/cancel", {"run_ids": ["a"]}),
    "a cancel by another status": ("/runs/cancel", {"status": "success"}),
    "another action": ("/runs/cancel?action=pause", {"status": "all"}),
    "runs that are a text": ("/runs/cancel", {"thread_id": "one", "run_ids": "a"}),
}


@pytest.mark.parametrize(("path", "body"), OTHERS.values(), ids=OTHERS)
def test_any_other_bad_request_is_refused(open_server, path, body):
    assert_refused(send(open_server, path, body), 422)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/threads/unknown"),
        ("GET", "/threads/%00%ff"),
        ("GET", "/threads/" + "x" * 3000),
        ("PATCH", "/threads/unknown"),
        ("DELETE", "/threads/one"),
        ("GET", "/threads/unknown/state"),
        ("GET", "/threads/one/state/unknown"),
        ("POST", "/threads/one/state"),
        ("POST", "/threads/unknown/history"),
        ("POST", "/threads/unknown/runs"),
        ("POST", "/threads/unknown/runs/stream"),
        ("GET", "/threads/unknown/runs"),
        ("GET", "/threads/one/runs/unknown"),
        ("GET", "/threads/one/runs/%00%0a"),
        ("GET", "/threads/one/runs/" + "x" * 3000),
        ("GET", "/threads/one/runs/unknown/join"),
        ("GET", "/threads/one/runs/unknown/stream"),
        ("POST", "/threads/one/runs/unknown/cancel"),
        ("DELETE", "/threads/one/runs/unknown"),
        ("POST", "/threads/one/runs/crons"),
        ("GET", "/assistants/nobody"),
        ("GET", "/assistants/nobody/schemas"),
        ("POST", "/runs/batch"),
        ("GET", "/store/items"),
    ],
)
def test_what_is_not_there_is_not_found(open_server, method, path):
    body = good() if method in {"POST", "PATCH"} else b""
    response = send(open_server, path, body, method)
    assert_refused(response, 404)


def test_an_agent_that_is_not_there_is_not_found(open_server):
    assert_refused(send(open_server, "/threads/one/runs", good(assistant_id="nobody")), 404)


def test_a_run_is_not_found_in_another_thread():
    with connected() as (service, client):
        thread, run_id = begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        other = new_thread(client)
        response = httpx.post(f"{service.url}/lg/threads/{other}/runs/{run_id}/cancel", timeout=DEADLINE)
        assert_refused(response, 404)
        for query in ("wait=long", "action=pause"):
            address = f"{service.url}/lg/threads/{thread}/runs/{run_id}/cancel?{query}"
            assert_refused(httpx.post(address, timeout=DEADLINE), 422)
        assert service.supervisor.blocking.get(run_id).stop is None
        GATES.release.set()
        assert ended(client, thread, run_id)["status"] == "success"


def test_a_run_that_was_started_elsewhere_with_the_key_of_a_thread_is_none_of_its_runs():
    with connected() as (service, client):
        thread = new_thread(client)
        body = {"agent": "echo", "input": "x", "key": f"langgraph_api:{thread}"}
        run_id = httpx.post(f"{service.url}/runs", json=body, timeout=DEADLINE).json()["id"]
        assert client.runs.list(thread) == []
        assert_refused(httpx.get(f"{service.url}/lg/threads/{thread}/runs/{run_id}", timeout=DEADLINE), 404)


@pytest.mark.parametrize("last", ["x", "-5", "1.5", "9" * 30, "\u0661".encode()])
def test_a_place_that_makes_no_sense_is_the_start_or_the_end(open_server, last):
    run_id = send(open_server, "/threads/t/runs", good()).json()["run_id"]
    assert open_server.connection.get(f"/threads/t/runs/{run_id}/join").status_code == 200
    response = open_server.connection.get(f"/threads/t/runs/{run_id}/stream", headers={"Last-Event-ID": last})
    assert response.status_code == 200


def test_a_mode_that_is_unknown_is_refused_when_a_stream_is_joined(open_server):
    run_id = send(open_server, "/threads/t/runs", good()).json()["run_id"]
    for modes in ("whispers", "[", '["values", 5]'):
        response = open_server.connection.get(f"/threads/t/runs/{run_id}/stream", params={"stream_mode": modes})
        assert_refused(response, 422)


def test_a_body_that_is_too_large_or_no_json_is_refused(open_server):
    assert_refused(send(open_server, "/threads/one/runs", good(config="x" * 1_100_000)), 413)
    assert_refused(send(open_server, "/threads/one/runs", b"id=t", **{"Content-Type": "text/plain"}), 415)


def test_a_web_page_of_another_origin_may_neither_start_nor_stop(open_server):
    for path in ("/threads", "/threads/one/runs", "/runs/cancel"):
        assert_refused(send(open_server, path, good(), Origin="http://evil.example"), 403)


def test_what_has_no_meaning_here_is_ignored(open_server):
    more = {"config": {"recursion_limit": 5}, "context": {"a": 1}, "durability": "sync", "stream_subgraphs": True}
    response = send(open_server, "/runs/wait", good(**more, interrupt_before=[], command=None, checkpoint={}))
    assert response.status_code == 200


_WORDS = st.sampled_from(["", "a", "user", "ai", "human", "tool", "text", "values", "echo", "\x00", "\u2028", "\ud800"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_MESSAGES = st.fixed_dictionaries(
    {"role": _WORDS, "content": _WORDS | _VALUES}, optional={"id": _VALUES, "type": _WORDS | _VALUES}
)
_FIELDS = {"input": st.fixed_dictionaries({"messages": st.lists(_MESSAGES, max_size=3) | _VALUES}) | _VALUES}
_OPTIONAL = {"metadata": _VALUES, "stream_mode": _WORDS | _VALUES, "checkpoint": _VALUES, "config": _VALUES}


@given(st.fixed_dictionaries(_FIELDS, optional=_OPTIONAL))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_an_answer_or_an_error(open_server, body):
    response = send(open_server, "/runs/wait", {"assistant_id": "nothing", **body})
    if response.status_code != 200:
        assert response.status_code < 500
        assert_refused(response, response.status_code)
