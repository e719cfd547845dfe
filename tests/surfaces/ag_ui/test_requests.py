"""What an agent gets, whose it is, and what is refused: as an event of the protocol, never with a 500."""

import contextlib
import json
import threading

import httpx
import pytest
from fastapi import Header
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoppable.server import Principal, ServerLimits

from ..openai_api.agents import GATES
from .conftest import DEADLINE, Client, Refused, connected, runs, serving, text_of, wait_until


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
    ],
)
def test_a_text_is_an_argument_or_an_object_of_them(open_server, agent, text, answer):
    assert text_of(Client(open_server.url, agent).ask(text)) == answer


def test_the_parts_of_a_message_are_one_text(open_server):
    client = Client(open_server.url, "echo")
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert text_of(client.ask(messages=[{"id": "a", "role": "user", "content": parts}])) == "one two "


def test_an_agent_that_takes_messages_gets_those_that_were_said(open_server):
    call = {"id": "call", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"id": "a", "role": "system", "content": "be short"},
        {"id": "b", "role": "user", "content": "look"},
        {"id": "c", "role": "reasoning", "content": "hm"},
        {"id": "d", "role": "assistant", "toolCalls": [call]},
        {"id": "e", "role": "tool", "content": "seen", "toolCallId": "call"},
        {"id": "f", "role": "activity", "activityType": "plan", "content": {"step": 1}},
        {"id": "g", "role": "assistant", "content": "not mine", "subagentRunId": "helper"},
        {"id": "h", "role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    events = Client(open_server.url, "chatting").ask(messages=messages)
    assert events[-1]["result"]["messages"] == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "seen", "tool_call_id": "call"},
        {"role": "user", "content": "go"},
    ]


def test_the_runs_of_a_thread_are_one_conversation(open_server):
    client = Client(open_server.url, "remembering", "thread-of-one")
    assert text_of(client.ask("one")) == "None: one"
    assert text_of(client.ask("two")) == "None: one, two"
    assert text_of(Client(open_server.url, "remembering").ask("else")) == "None: else"


def test_of_two_runs_that_begin_at_once_in_a_thread_one_is_refused():
    with serving() as service:
        for number in range(10):
            GATES.close()
            together, answers = threading.Barrier(2), []

            def ask(number=number, together=together, answers=answers):
                client = Client(service.url, "waits", f"thread at once {number}")
                together.wait()
                try:
                    answers.append(client.ask("go")[-1]["type"])
                except Refused as refused:
                    answers.append(refused.event["code"])
                    GATES.release.set()

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(answers) == ["RUN_FINISHED", "conversation_busy"]
            assert len(runs(service)) == number + 1


# Whose it is


async def by_header(x_user: str = Header(), x_scopes: str = Header("read start stop")) -> Principal:
    return Principal(owner=x_user, actor=x_user, scopes=x_scopes)


@contextlib.contextmanager
def of_users(**options):
    """Yield a server, and what makes a client of a user with some scopes."""
    with serving(principal=by_header, **options) as service:

        def client(user, agent, thread="", scopes="read start stop"):
            return Client(service.url, agent, thread, {"X-User": user, "X-Scopes": scopes})

        yield service, client


def test_threads_and_runs_of_two_owners_with_one_name_do_not_meet():
    with of_users() as (service, client):
        with client("ann", "waits", "one").stream("hello", runId="run-of-both") as stream:
            next(stream)
            events = client("bob", "echo", "one").ask("hello", runId="run-of-both")
            assert events[-1]["runId"] == "run-of-both"
            with pytest.raises(Refused, match="at work"):
                client("ann", "echo", "one").ask("me too")
        [run] = [run for run in runs(service) if run.owner == "ann"]
        wait_until(lambda: service.supervisor.blocking.get(run.id).over)
        # What ann's run had said is not for bob.
        assert "first " not in json.dumps(client("bob", "echo", "one").ask("again"))


def test_a_start_needs_its_scope():
    with of_users() as (service, client):
        with pytest.raises(Refused, match="scope") as refused:
            client("ann", "echo", scopes="read stop").ask("x")
        assert (refused.value.status, refused.value.event["code"]) == (403, "missing_scope")
        assert not runs(service)


def test_leaving_does_not_bypass_the_scope_stop():
    with of_users() as (service, client):
        with client("ann", "waits", scopes="read start").stream("kept") as stream:
            next(stream)
        with client("ann", "waits").stream("left") as stream:
            next(stream)
        left, kept = runs(service)
        wait_until(lambda: service.supervisor.blocking.get(left.id).over)
        assert service.supervisor.blocking.get(left.id).status == "stopped"
        assert service.supervisor.blocking.get(kept.id).stop is None


def test_a_key_is_needed_where_the_server_has_one():
    with serving(api_key="a key of its own") as service:
        with pytest.raises(Refused) as refused:
            Client(service.url, "echo").ask("x")
        assert (refused.value.status, refused.value.event["code"]) == (401, "unauthenticated")
        headers = {"Authorization": "Bearer a key of its own"}
        assert text_of(Client(service.url, "echo", headers=headers).ask("x")) == "x "


# What is refused


def test_a_hold_refuses_a_start():
    with of_users() as (service, client):
        service.supervisor.blocking.hold(agent="echo", reason="incident")
        with pytest.raises(Refused) as refused:
            client("ann", "echo").ask("x")
        assert (refused.value.status, refused.value.event["code"]) == (423, "run_held")


def test_a_quota_refuses_a_start():
    with of_users(limits=ServerLimits(owner_runs=1)) as (_, client):
        with client("ann", "waits").stream("x") as stream:
            next(stream)
            with pytest.raises(Refused) as refused:
                client("ann", "echo").ask("y")
            assert (refused.value.status, refused.value.event["code"]) == (429, "quota_exceeded")


def test_the_id_of_a_run_is_used_once():
    with connected("echo") as (service, client):
        client.ask("x", runId="mine")
        with pytest.raises(Refused, match="needs a new id") as refused:
            client.ask("y", runId="mine")
        assert (refused.value.status, refused.value.event["code"]) == (409, "run_conflict")
        assert len(runs(service)) == 1


def good(**changes):
    """Return an input with some of its fields changed."""
    message = {"id": "a", "role": "user", "content": "x"}
    return {"threadId": "t", "runId": "r", "messages": [message], **changes}


def of(**message):
    """Return an input with a message before the question."""
    return good(messages=[{"id": "b", "role": "assistant", **message}, {"id": "a", "role": "user", "content": "x"}])


JSON = {"Content-Type": "application/json"}
DEEP = "[" * 900 + "]" * 900
BAD = {
    "no json": (400, b"{"),
    "nothing": (400, b""),
    "not utf-8": (400, b'{"threadId": "\xff"}'),
    "half a surrogate": (400, b'{"threadId": "\\ud800"}'),
    "deep": (400, b'{"threadId": "t", "runId": "r", "messages": [], "state": %b}' % DEEP.encode()),
    "very deep": (400, b"[" * 100_000),
    "not a number": (400, b'{"threadId": NaN}'),
    "not an object": (422, b"[]"),
    "null": (422, b"null"),
    "no thread": (422, {"runId": "r", "messages": []}),
    "no run": (422, {"threadId": "t", "messages": []}),
    "no messages": (422, {"threadId": "t", "runId": "r"}),
    "empty thread": (422, good(threadId="")),
    "thread is a number": (422, good(threadId=5)),
    "long thread": (422, good(threadId="x" * 5000)),
    "empty run": (422, good(runId="")),
    "long run": (422, good(runId="x" * 200)),
    "run is null": (422, good(runId=None)),
    "run is no id": (422, good(runId="../runs")),
    "run with a line": (422, good(runId="a\nb")),
    "messages is a text": (422, good(messages="x")),
    "a message is a text": (422, good(messages=["x"])),
    "a message without an id": (422, good(messages=[{"role": "user", "content": "x"}])),
    "a message without a role": (422, good(messages=[{"id": "a", "content": "x"}])),
    "another role": (422, of(role="robot")),
    "content is a number": (422, of(content=5)),
    "content is an object": (422, of(content={"a": 1})),
    "a part without a type": (422, of(content=[{}])),
    "an image": (422, of(content=[{"type": "image", "source": {"type": "url", "value": "x"}}])),
    "calls are a text": (422, of(toolCalls="x")),
    "a call without a function": (422, of(toolCalls=[{"id": "c"}])),
    "no user": (422, good(messages=[{"id": "a", "role": "assistant", "content": "x"}])),
    "no message": (422, good(messages=[])),
    "an answer to an interrupt": (422, good(resume=[{"interruptId": "i", "status": "resolved"}])),
    "version is a number": (422, good(protocolVersion=1)),
}


def assert_refused(response, status):
    assert response.status_code == status, response.text
    event = response.json()
    assert set(event) == {"type", "message", "code"}
    assert event["type"] == "RUN_ERROR"
    assert event["message"]
    assert isinstance(event["code"], str)


def post(service, body, path="/agui/echo", **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {**JSON, **headers}
    return httpx.post(service.url + path, content=content, headers=headers, timeout=DEADLINE)


@pytest.mark.parametrize(("status", "body"), BAD.values(), ids=BAD)
def test_a_bad_input_is_an_error_of_the_protocol(open_server, status, body):
    before = len(runs(open_server))
    assert_refused(post(open_server, body), status)
    assert len(runs(open_server)) == before, "nothing was started"


@pytest.mark.parametrize("text", ['{"count": "many"}', '{"folder": "x"}', "five"])
def test_arguments_that_do_not_fit_are_refused_before_the_start(open_server, text):
    body = good(messages=[{"id": "a", "role": "user", "content": text}])
    assert_refused(post(open_server, body, "/agui/typed"), 422)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/agui/nobody"),
        ("POST", "/agui/"),
        ("POST", "/agui/echo/run"),
        ("POST", "/agui/%00%0a"),
        ("POST", "/agui/..%2fruns"),
        ("POST", "/agui/" + "x" * 3000),
        ("GET", "/agui/echo"),
        ("DELETE", "/agui/echo"),
    ],
)
def test_what_is_not_there_is_an_error_of_the_protocol(open_server, method, path):
    json_body = {"json": good()} if method == "POST" else {}
    assert_refused(httpx.request(method, open_server.url + path, timeout=DEADLINE, **json_body), 404)


def test_a_body_that_is_too_large_or_no_json_is_an_error_of_the_protocol(open_server):
    assert_refused(post(open_server, good(state="x" * 1_100_000)), 413)
    assert_refused(post(open_server, b"threadId=t", **{"Content-Type": "text/plain"}), 415)


def test_a_web_page_of_another_origin_may_not_start_an_agent(open_server):
    response = post(open_server, good(), Origin="http://evil.example")
    assert response.status_code == 403


_WORDS = st.sampled_from(
    ["", "a", "user", "assistant", "tool", "text", "run", "1.0", "\x00", "\u2028", "\ud800", "x" * 300]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3),
    max_leaves=6,
)
_PARTS = st.fixed_dictionaries({}, optional={"type": _WORDS, "text": _VALUES})
_MESSAGES = st.fixed_dictionaries(
    {"id": _WORDS | _VALUES, "role": _WORDS | _VALUES},
    optional={
        "content": _WORDS | st.lists(_PARTS, max_size=2) | _VALUES,
        "toolCalls": _VALUES,
        "toolCallId": _VALUES,
        "subagentRunId": _VALUES,
        "metadata": _VALUES,
    },
)
_FIELDS = {
    "threadId": _WORDS | _VALUES,
    "runId": st.uuids().map(str) | _VALUES,
    "messages": st.lists(_MESSAGES, max_size=3),
}


@pytest.fixture(scope="module")
def connection():
    with httpx.Client(timeout=DEADLINE) as client:
        yield client


@given(st.fixed_dictionaries(_FIELDS, optional={"protocolVersion": _VALUES, "resume": _VALUES, "state": _VALUES}))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_a_run_or_an_error_of_the_protocol(open_server, connection, body):
    response = connection.post(f"{open_server.url}/agui/nothing", content=json.dumps(body), headers=JSON)
    if response.status_code != 200:
        assert response.status_code < 500
        assert_refused(response, response.status_code)


def test_what_has_no_meaning_here_is_ignored(open_server):
    more = dict.fromkeys(("resume", "state", "parentRunId"))
    more |= {"tools": [{"name": "t", "description": "d"}], "context": [], "forwardedProps": [1], "unknown": {}}
    response = post(open_server, good(runId="ignored", **more))
    assert response.status_code == 200
    assert "RUN_FINISHED" in response.text
