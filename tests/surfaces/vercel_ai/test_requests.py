"""What an agent gets, and what is refused: as an error in JSON, never with a 500."""

import json
import threading

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoppable.server import ServerLimits

from ..openai_api.agents import GATES
from .conftest import (
    DEADLINE,
    Client,
    Refused,
    by_header,
    client_of,
    connected,
    kinds,
    message,
    only,
    runs,
    serving,
    text_of,
)


@pytest.fixture(scope="module")
def open_server():
    with serving() as service:
        yield service


@pytest.mark.parametrize(
    ("agent", "text", "answer"),
    [
        ("echo", "plain", "plain "),
        ("echo", '{"text": "by name"}', "by name "),
        ("echo", '{"other": 1}', '{"other": 1} '),
        ("typed", '{"count": 2}', "3"),
        ("nothing", "ignored", ""),
        ("echo", "", " "),
    ],
)
def test_a_text_is_an_argument_or_an_object_of_them(open_server, agent, text, answer):
    assert text_of(Client(open_server.url, agent).ask(text)) == answer


def test_an_agent_that_takes_messages_gets_what_was_said(open_server):
    tool = {"type": "dynamic-tool", "toolName": "t", "toolCallId": "c", "state": "output-available", "output": 1}
    other = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm"},
        {"type": "data-x", "text": 5, "data": 1},
        tool,
    ]
    client = Client(open_server.url, "chatting")
    client.messages = [
        {"id": "a", "role": "system", "parts": [{"type": "text", "text": "be short"}]},
        message("user", "look"),
        {
            "id": "c",
            "role": "assistant",
            "metadata": {"stoppable": {"run": "r"}},
            "parts": [{"type": "text", "text": "one "}, *other, {"type": "text", "text": "two"}],
        },
        {"id": "d", "role": "assistant", "parts": other},
    ]
    result = only(client.ask("go"), "data-result")["data"]
    assert result["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "one two"},
        {"role": "user", "content": "go"},
    ]


def test_the_turns_of_a_chat_are_one_conversation(open_server):
    client = Client(open_server.url, "remembering", "of-one")
    assert text_of(client.ask("one")) == "None: one"
    assert text_of(client.ask("two", trigger="regenerate-message", messageId="m")) == "None: one, two"
    assert text_of(Client(open_server.url, "remembering").ask("else")) == "None: else"


def test_of_two_messages_at_once_in_a_chat_one_is_refused():
    with serving() as service:
        together, answers = threading.Barrier(2), []

        def ask():
            client = Client(service.url, "waits", "at once")
            together.wait()
            try:
                answers.append(kinds(client.ask("go"))[-1])
            except Refused as refused:
                answers.append((refused.status, refused.error["code"]))
                GATES.release.set()

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(answers) == {"finish", (409, "conversation_busy")}
        assert len(runs(service)) == 1


# What is refused


def test_a_hold_and_a_quota_refuse_a_start():
    with serving(principal=by_header, limits=ServerLimits(owner_runs=1)) as service:
        with client_of(service, "ann", "waits", "one").stream("x") as stream:
            next(stream)
            with pytest.raises(Refused) as refused:
                client_of(service, "ann", "echo", "two").ask("y")
            assert (refused.value.status, refused.value.error["code"]) == (429, "quota_exceeded")
        service.supervisor.blocking.hold(agent="echo", reason="incident")
        with pytest.raises(Refused) as refused:
            client_of(service, "bob", "echo", "three").ask("y")
        assert (refused.value.status, refused.value.error["code"]) == (423, "run_held")


def test_a_key_is_needed_where_the_server_has_one():
    with serving(api_key="a key of its own") as service:
        client = Client(service.url, "echo")
        for attempt in (client.ask, client.stop, lambda: client.resume().__enter__()):
            with pytest.raises(Refused) as refused:
                attempt()
            assert refused.value.status == 401
        client.headers = {"Authorization": "Bearer a key of its own"}
        assert text_of(client.ask("x")) == "x "


ONE = {"id": "a", "role": "user", "parts": [{"type": "text", "text": "x"}]}


def good(**changes):
    """Return a body with some of its fields changed."""
    return {"id": "t", "messages": [ONE], "trigger": "submit-message", **changes}


def of(*parts, role="user"):
    """Return a body with a message that has some parts, before the question."""
    return good(messages=[{"id": "b", "role": role, "parts": list(parts)}, ONE])


JSON = {"Content-Type": "application/json"}
DEEP = "[" * 900 + "]" * 900
BAD = {
    "no json": (400, b"{"),
    "nothing": (400, b""),
    "not utf-8": (400, b'{"id": "\xff"}'),
    "half a surrogate": (400, b'{"id": "\\ud800"}'),
    "deep": (400, b'{"id": "t", "messages": [], "state": %b}' % DEEP.encode()),
    "very deep": (400, b"[" * 100_000),
    "not a number": (400, b'{"id": NaN}'),
    "not an object": (422, b"[]"),
    "null": (422, b"null"),
    "no chat": (422, {"messages": [ONE]}),
    "no messages": (422, {"id": "t"}),
    "empty chat": (422, good(id="")),
    "chat is a number": (422, good(id=5)),
    "long chat": (422, good(id="x" * 5000)),
    "messages is a text": (422, good(messages="x")),
    "a message is a text": (422, good(messages=["x"])),
    "a message without a role": (422, good(messages=[{"id": "a", "parts": []}])),
    "a message without parts": (422, good(messages=[{"id": "a", "role": "user"}])),
    "a message of version 4": (422, good(messages=[{"id": "a", "role": "user", "content": "x"}])),
    "another role": (422, of(role="tool")),
    "parts is a text": (422, good(messages=[{"id": "a", "role": "user", "parts": "x"}])),
    "a part is a text": (422, of("x")),
    "a part without a type": (422, of({"text": "x"})),
    "a text without a text": (422, of({"type": "text"})),
    "a text that is a number": (422, of({"type": "text", "text": 5})),
    "a file": (422, of({"type": "file", "mediaType": "image/png", "url": "data:"})),
    "no message": (422, good(messages=[])),
    "the last is the agent's": (422, good(messages=[ONE, {"id": "b", "role": "assistant", "parts": []}])),
    "another trigger": (422, good(trigger="resume-stream")),
    "another word for leaving": (422, good(on_disconnect="never")),
}


def assert_refused(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    assert isinstance(error["code"], str)


def post(service, body, path="/vercel/echo", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(service.url + path, content=content, headers={**JSON, **headers}, timeout=DEADLINE)


@pytest.mark.parametrize(("status", "body"), BAD.values(), ids=BAD)
def test_a_bad_body_is_refused(open_server, status, body):
    before = len(runs(open_server))
    assert_refused(post(open_server, body), status)
    assert len(runs(open_server)) == before, "nothing was started"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"{"),
        (422, b"[]"),
        (422, b"null"),
        (422, {"mode": "softly"}),
        (422, {"mode": 1}),
        (422, {"reason": 5}),
        (422, {"reason": "x" * 1001}),
        (422, {"grace": -1}),
        (422, {"resaon": "misspelled"}),
    ],
)
def test_a_bad_stop_stops_nothing(status, body):
    with connected("waits") as (service, client):
        with client.stream("x") as stream:
            next(stream)
            assert_refused(post(service, body, f"/vercel/waits/{client.chat}/stop"), status)
            with pytest.raises(Refused) as refused:
                client.stop(wait="long")
            assert refused.value.status == 422
            assert service.supervisor.blocking.get(client.run_id).stop is None
            GATES.release.set()
            assert kinds(list(stream))[-1] == "finish"


@pytest.mark.parametrize("text", ['{"count": "many"}', '{"folder": "x"}', "five"])
def test_arguments_that_do_not_fit_are_refused_before_the_start(open_server, text):
    with pytest.raises(Refused) as refused:
        Client(open_server.url, "typed").ask(text)
    assert refused.value.status == 422


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/vercel/nobody"),
        ("POST", "/vercel/"),
        ("POST", "/vercel/echo/run"),
        ("POST", "/vercel/%00%0a"),
        ("POST", "/vercel/..%2fruns"),
        ("POST", "/vercel/" + "x" * 3000),
        ("GET", "/vercel/echo"),
        ("DELETE", "/vercel/echo"),
        ("POST", "/vercel/echo/unknown/stop"),
        ("POST", "/vercel/echo//stop"),
        ("POST", "/vercel/echo/%00%ff/stop"),
        ("POST", "/vercel/echo/" + "x" * 3000 + "/stop"),
        ("POST", "/vercel/nobody/unknown/stop"),
        ("GET", "/vercel/nobody/unknown/stream"),
        ("GET", "/vercel/echo/unknown/stop"),
    ],
)
def test_what_is_not_there_is_not_found(open_server, method, path):
    more = {"json": good()} if method == "POST" and not path.endswith("/stop") else {}
    assert_refused(httpx.request(method, open_server.url + path, timeout=DEADLINE, **more), 404)


@pytest.mark.parametrize("chat", ["unknown", "%00%ff", "a%2fb", "x" * 3000])
def test_there_is_nothing_to_resume_of_a_chat_that_is_unknown(open_server, chat):
    response = httpx.get(f"{open_server.url}/vercel/echo/{chat}/stream", timeout=DEADLINE)
    assert (response.status_code, response.content) == (204, b"")


def test_a_chat_of_another_agent_is_not_stopped():
    with connected("waits") as (service, client):
        with client.stream("x") as stream:
            next(stream)
            with pytest.raises(Refused) as refused:
                Client(service.url, "echo", client.chat).stop()
            assert refused.value.error["code"] == "chat_not_found"
            GATES.release.set()
            assert kinds(list(stream))[-1] == "finish"


def test_a_body_that_is_too_large_or_no_json_is_refused(open_server):
    assert_refused(post(open_server, good(state="x" * 1_100_000)), 413)
    assert_refused(post(open_server, b"id=t", **{"Content-Type": "text/plain"}), 415)


def test_a_web_page_of_another_origin_may_neither_start_nor_stop(open_server):
    for path in ("/vercel/echo", "/vercel/echo/t/stop"):
        assert_refused(post(open_server, good(), path, Origin="http://evil.example"), 403)


_WORDS = st.sampled_from(
    ["", "a", "user", "assistant", "system", "text", "file", "data-x", "submit-message", "\x00", "\u2028", "\ud800"]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_PARTS = st.fixed_dictionaries({"type": _WORDS}, optional={"text": _WORDS | _VALUES, "data": _VALUES})
_MESSAGES = st.fixed_dictionaries(
    {"role": _WORDS, "parts": st.lists(_PARTS, max_size=2) | _VALUES}, optional={"id": _VALUES, "metadata": _VALUES}
)
_QUESTIONS = st.fixed_dictionaries({"role": st.just("user"), "parts": st.lists(_PARTS, max_size=2)})
_FIELDS = {
    "id": st.uuids().map(str) | _WORDS | _VALUES,
    "messages": st.lists(_MESSAGES, max_size=2).flatmap(lambda said: _QUESTIONS.map(lambda one: [*said, one]))
    | _VALUES,
}


@pytest.fixture(scope="module")
def connection():
    with httpx.Client(timeout=DEADLINE) as client:
        yield client


@given(st.fixed_dictionaries(_FIELDS, optional={"trigger": _WORDS | _VALUES, "messageId": _VALUES, "body": _VALUES}))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_an_answer_or_an_error(open_server, connection, body):
    response = connection.post(f"{open_server.url}/vercel/nothing", content=json.dumps(body), headers=JSON)
    if response.status_code != 200:
        assert response.status_code < 500
        assert_refused(response, response.status_code)


def test_what_has_no_meaning_here_is_ignored(open_server):
    response = post(open_server, good(id="ignored", messageId=None, tools={}, model="x", trigger=None))
    assert response.status_code == 200
    assert '"type":"finish"' in response.text
