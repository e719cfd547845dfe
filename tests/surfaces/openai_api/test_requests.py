"""What an agent gets, whose it is, and what is refused: in the words of the API, never with a 500."""

import contextlib
import json
import threading

import httpx
import openai
import pytest
from fastapi import Header

from stoppable.server import Principal, ServerLimits

from .agents import GATES
from .conftest import DEADLINE, HASTY, client_of, connected, newest, run_of, runs, serving, wait_until

CHAT = [{"role": "user", "content": "go"}]


# What it offers


def test_the_models_are_the_agents():
    with connected() as (_, client):
        names = [model.id for model in client.models.list()]
        assert {"research", "echo", "hangs"} <= set(names)
        assert client.models.retrieve("echo").id == "echo"
        with pytest.raises(openai.NotFoundError) as refused:
            client.models.retrieve("gpt-5")
        assert (refused.value.code, refused.value.param) == ("model_not_found", "model")


def test_a_response_is_a_run_with_its_metadata_as_labels():
    with connected() as (service, client):
        response = client.responses.create(model="echo", input="hello", metadata={"team": "physics"}, temperature=0.5)
        assert (response.status, response.output_text, response.metadata) == (
            "completed",
            "hello ",
            {"team": "physics"},
        )
        assert response.model == "echo"
        assert response.created_at > 1_000_000_000
        assert not response.background
        record = run_of(service, response.id)
        assert (record.name, record.status, record.labels["team"]) == ("echo", "completed", "physics")
        assert client.responses.retrieve(response.id) == response


def test_a_chat_completion_is_its_answer():
    with connected() as (_, client):
        done = client.chat.completions.create(model="echo", messages=CHAT)
        assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("go ", "stop")


def test_the_header_of_an_answer_names_the_run():
    with connected() as (service, client):
        raw = client.chat.completions.with_raw_response.create(model="echo", messages=CHAT)
        assert raw.headers["stoppable-run-id"] == newest(service).id


# What an agent gets


@pytest.mark.parametrize(
    ("model", "text", "answer"),
    [
        ("echo", "plain", "plain "),
        ("echo", '{"text": "by name"}', "by name "),
        ("echo", '{"other": 1}', '{"other": 1} '),
        ("echo", '{"text": ', '{"text":  '),
        ("echo", "{}", "{} "),
        ("echo", "[1]", "[1] "),
        ("typed", '{"count": 2}', "3"),
        ("typed", '{"count": 2, "folder": "x"}', "3"),
        ("nothing", "ignored", ""),
    ],
)
def test_a_text_is_an_argument_or_an_object_of_them(model, text, answer):
    with connected() as (_, client):
        assert client.responses.create(model=model, input=text).output_text == answer


def test_the_last_text_of_the_user_counts():
    with connected() as (_, client):
        parts = [{"type": "input_text", "text": "second "}, {"type": "input_text", "text": "part"}]
        items = [
            {"role": "user", "content": "first"},
            {"type": "message", "role": "user", "content": parts},
            {"role": "assistant", "content": "before"},
        ]
        assert client.responses.create(model="echo", input=items).output_text == "second part "


def test_an_agent_that_takes_messages_gets_all_of_them():
    with connected() as (_, client):
        messages = [
            {"role": "system", "content": "be short"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        ]
        answer = client.chat.completions.create(model="chatting", messages=messages).choices[0].message.content
        assert json.loads(answer) == {"messages": messages}
        response = client.responses.create(model="chatting", input="hello")
        assert json.loads(response.output_text) == {"messages": [{"role": "user", "content": "hello"}]}


# Conversations


def test_turns_that_name_the_one_before_are_one_conversation():
    with connected() as (service, client):
        first = client.responses.create(model="remembering", input="one")
        second = client.responses.create(model="remembering", input="two", previous_response_id=first.id)
        third = client.responses.create(model="remembering", input="three", previous_response_id=second.id)
        assert third.output_text == "None: one, two, three"
        keys = {run_of(service, response.id).key for response in (first, second, third)}
        assert keys == {f"openai:{first.id.removeprefix('resp_')}"}
        other = client.responses.create(model="remembering", input="else")
        assert other.output_text == "None: else"


def test_a_conversation_may_have_a_name():
    with connected() as (service, client):
        for text, named in (("one", "chat-7"), ("two", {"id": "chat-7"})):
            response = client.responses.create(model="remembering", input=text, extra_body={"conversation": named})
        assert response.output_text == "None: one, two"
        assert run_of(service, response.id).key == "openai:chat-7"


def test_a_turn_after_a_stopped_one_knows_what_was_said():
    with connected() as (_, client):
        first = client.responses.create(model="remembering", input="wait", background=True)
        wait_until(GATES.reached.is_set)
        assert client.responses.cancel(first.id).status == "cancelled"
        second = client.responses.create(model="remembering", input="go on", previous_response_id=first.id)
        assert second.output_text == "None: wait, go on"


def test_a_turn_beside_one_that_is_at_work_is_refused():
    with connected() as (service, client):
        first = client.responses.create(model="waits", input="go", background=True)
        with pytest.raises(openai.ConflictError, match="is at work") as refused:
            client.responses.create(model="echo", input="me too", previous_response_id=first.id)
        assert refused.value.code == "conversation_busy"
        assert len(runs(service)) == 1


def test_of_two_turns_that_begin_at_once_one_is_refused():
    with connected() as (service, client):
        for number in range(10):
            more = {"conversation": f"chat-{number}"}
            together, answers = threading.Barrier(2), []

            def ask(more=more, together=together, answers=answers):
                together.wait()
                try:
                    client.responses.create(model="waits", input="go", background=True, extra_body=more)
                    answers.append("started")
                except openai.ConflictError as error:
                    answers.append(error.code)

            threads = [threading.Thread(target=ask) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(answers) == ["conversation_busy", "started"]
            assert len(runs(service)) == number + 1


def test_a_turn_waits_for_the_end_of_one_that_is_being_stopped():
    with connected() as (service, client):
        first = client.responses.create(model="stubborn", input="go", background=True)
        wait_until(GATES.reached.is_set)
        GATES.reached.clear()
        service.supervisor.blocking.stop(run_of(service, first.id).id)
        wait_until(GATES.reached.is_set)
        answers = []

        def ask():
            answers.append(client.responses.create(model="echo", input="next", previous_response_id=first.id))

        thread = threading.Thread(target=ask)
        thread.start()
        assert not answers
        GATES.release.set()
        thread.join()
        [second] = answers
        assert second.output_text == "next "
        assert run_of(service, first.id).ended_at <= run_of(service, second.id).created_at


def test_a_turn_beside_one_that_cannot_be_stopped_in_time_is_refused():
    with connected(HASTY) as (service, client):
        first = client.responses.create(model="stubborn", input="go", background=True)
        wait_until(GATES.reached.is_set)
        service.supervisor.blocking.stop(run_of(service, first.id).id, grace=300)
        with pytest.raises(openai.ConflictError):
            client.responses.create(model="echo", input="next", previous_response_id=first.id)
        GATES.release.set()
        service.supervisor.blocking.stop(run_of(service, first.id).id, "immediate", wait=DEADLINE)


# Whose it is


async def by_header(x_user: str = Header(), x_scopes: str = Header("read start stop")) -> Principal:
    return Principal(owner=x_user, actor=x_user, scopes=x_scopes)


@contextlib.contextmanager
def of_users():
    """Yield a server and a client for each user and its scopes."""
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(serving(principal=by_header))

        def client(user, scopes="read start stop"):
            headers = {"X-User": user, "X-Scopes": scopes}
            return stack.enter_context(client_of(service, default_headers=headers))

        yield service, client


def test_what_is_not_yours_does_not_exist():
    with of_users() as (service, client):
        ann, bob = client("ann"), client("bob")
        own = ann.responses.create(model="waits", input="go", background=True)
        for ask in (
            lambda: bob.responses.retrieve(own.id),
            lambda: bob.responses.retrieve(own.id, stream=True),
            lambda: bob.responses.cancel(own.id),
            lambda: bob.responses.create(model="echo", input="x", previous_response_id=own.id),
        ):
            with pytest.raises(openai.NotFoundError) as refused:
                ask()
            assert refused.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as unknown:
            bob.responses.retrieve("resp_nobody")
        assert unknown.value.body["message"].replace("resp_nobody", own.id) == refused.value.body["message"]
        assert run_of(service, own.id).stop is None
        assert ann.responses.cancel(own.id).status == "cancelled"
        record = run_of(service, own.id)
        assert (record.owner, record.stop.reason.actor) == ("ann", "ann")


def test_conversations_of_two_owners_with_one_name_do_not_meet():
    with of_users() as (_, client):
        for user in ("ann", "bob"):
            more = {"conversation": "one"}
            response = client(user).responses.create(model="waits", input="go", background=True, extra_body=more)
            assert response.status in {"queued", "in_progress"}


@pytest.mark.parametrize(
    ("scopes", "ask"),
    [
        ("start stop", lambda client, own: client.models.list()),
        ("start stop", lambda client, own: client.responses.retrieve(own)),
        ("read stop", lambda client, own: client.responses.create(model="echo", input="x")),
        ("read stop", lambda client, own: client.chat.completions.create(model="echo", messages=CHAT)),
        ("read start", lambda client, own: client.responses.cancel(own)),
    ],
)
def test_each_call_needs_its_scope(scopes, ask):
    with of_users() as (service, client):
        own = client("ann").responses.create(model="waits", input="go", background=True)
        with pytest.raises(openai.PermissionDeniedError, match="scope") as refused:
            ask(client("ann", scopes), own.id)
        assert refused.value.code == "missing_scope"
        assert len(runs(service)) == 1
        assert run_of(service, own.id).stop is None


def test_leaving_does_not_bypass_the_scope_stop():
    with of_users() as (service, client):
        with client("ann", "start").responses.create(model="waits", input="go", stream=True) as stream:
            response_id = next(stream).response.id
        with client("ann").responses.create(model="waits", input="go", stream=True) as stream:
            other_id = next(stream).response.id
        wait_until(lambda: run_of(service, other_id).over)
        assert run_of(service, other_id).status == "stopped"
        assert run_of(service, response_id).stop is None


def test_a_key_is_needed_where_the_server_has_one():
    with serving(api_key="a key of its own") as service, client_of(service) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        with client_of(service, api_key="a key of its own") as client:
            assert client.models.list()


# What is refused


def test_a_hold_refuses_a_start():
    with of_users() as (service, client):
        service.supervisor.blocking.hold(agent="echo", reason="incident")
        with pytest.raises(openai.PermissionDeniedError) as refused:
            client("ann").responses.create(model="echo", input="x")
        assert refused.value.code == "run_held"


def test_a_quota_refuses_a_start():
    with serving(principal=by_header, limits=ServerLimits(owner_runs=1)) as service:
        with client_of(service, default_headers={"X-User": "ann"}) as ann:
            ann.responses.create(model="waits", input="x", background=True)
            with pytest.raises(openai.RateLimitError) as refused:
                ann.responses.create(model="waits", input="y", background=True)
            assert refused.value.code == "quota_exceeded"


DEEP = "[" * 900 + "]" * 900
GOOD = {"model": "echo", "input": "x"}
BAD = {
    "no json": b"{",
    "nothing": b"",
    "not an object": b"[]",
    "null": b"null",
    "not utf-8": b'{"model": "\xff"}',
    "half a surrogate": b'{"model": "echo", "input": "\\ud800"}',
    "deep": b'{"model": "echo", "input": "x", "more": %b}' % DEEP.encode(),
    "very deep": b"[" * 100_000,
    "deep with a long number": b'{"n": 12345678901234567890, "more": %b}' % DEEP.encode(),
    "not a number": b'{"model": "echo", "input": NaN}',
    "no model": {"input": "x"},
    "model is a number": {"model": 5, "input": "x"},
    "empty model": {"model": "", "input": "x"},
    "long model": {"model": "x" * 5000, "input": "x"},
    "no input": {"model": "echo"},
    "input is null": {"model": "echo", "input": None},
    "input is a number": {"model": "echo", "input": 5},
    "input is an object": {"model": "echo", "input": {"a": 1}},
    "no items": {"model": "echo", "input": []},
    "an item is a text": {"model": "echo", "input": ["x"]},
    "no user": {"model": "echo", "input": [{"role": "assistant", "content": "x"}]},
    "no role": {"model": "echo", "input": [{"content": "x"}]},
    "an image": {"model": "echo", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    "a part without a type": {"model": "echo", "input": [{"role": "user", "content": [{}]}]},
    "a part that is a number": {"model": "echo", "input": [{"role": "user", "content": [5]}]},
    "a tool's output": {"model": "echo", "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
    "stream is a text": {**GOOD, "stream": "yes"},
    "background is a number": {**GOOD, "background": 1},
    "metadata is a list": {**GOOD, "metadata": ["x"]},
    "metadata has a number": {**GOOD, "metadata": {"x": 5}},
    "metadata is too long": {**GOOD, "metadata": {"x": "y" * 300}},
    "too much metadata": {**GOOD, "metadata": {str(n): "" for n in range(17)}},
    "metadata of ours": {**GOOD, "metadata": {"openai.background": "true"}},
    "previous is a number": {**GOOD, "previous_response_id": 5},
    "conversation is a list": {**GOOD, "conversation": []},
    "conversation and previous": {**GOOD, "conversation": "x", "previous_response_id": "resp_x"},
    "an argument of another type": {"model": "typed", "input": '{"count": "many"}'},
    "an argument is missing": {"model": "typed", "input": '{"folder": "x"}'},
    "a text for a number": {"model": "typed", "input": "five"},
}


@pytest.fixture(scope="module")
def open_server():
    with serving() as service:
        yield service


def assert_refused(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["code"], str)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_a_bad_body_is_an_error_of_the_api(open_server, body):
    before = len(runs(open_server))
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    assert_refused(httpx.post(f"{open_server.url}/v1/responses", content=content, headers=headers, timeout=DEADLINE))
    if (
        isinstance(body, dict)
        and "input" in body
        and not {"previous_response_id", "conversation", "background"} & set(body)
    ):
        given = body.pop("input")
        body["messages"] = [{"role": "user", "content": given}] if isinstance(given, str) else given
        response = httpx.post(f"{open_server.url}/v1/chat/completions", json=body, timeout=DEADLINE)
        body["input"] = given
        assert_refused(response)
    assert len(runs(open_server)) == before, "nothing was started"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/responses/resp_nobody", 404),
        ("GET", "/v1/responses/" + "x" * 3000, 404),
        ("GET", "/v1/responses/%00%0a", 404),
        ("GET", "/v1/responses/..%2f..%2fruns", 404),
        ("GET", "/v1/responses/resp_nobody?stream=maybe", 400),
        ("GET", "/v1/responses/resp_nobody?stream=true&starting_after=x", 400),
        ("GET", "/v1/responses/resp_nobody?stream=true&starting_after=-7", 400),
        ("POST", "/v1/responses/resp_nobody/cancel", 404),
        ("GET", "/v1/models/nobody", 404),
        ("GET", "/v1/models/a/b", 404),
        ("GET", "/v1/chat/completions", 404),
        ("POST", "/v1/embeddings", 404),
        ("DELETE", "/v1/responses/resp_nobody", 404),
        ("PUT", "/v1", 404),
        ("GET", "/v1/", 404),
        ("POST", "/v1/models", 404),
    ],
)
def test_what_is_not_there_is_an_error_of_the_api(open_server, method, path, status):
    response = httpx.request(method, open_server.url + path, timeout=DEADLINE)
    if path == "/v1":
        assert response.status_code == 404
    else:
        assert_refused(response, status)


def test_a_body_that_is_too_large_or_no_json_is_an_error_of_the_api(open_server):
    url = f"{open_server.url}/v1/responses"
    assert_refused(httpx.post(url, json={"model": "echo", "input": "x" * 1_100_000}, timeout=DEADLINE), 413)
    text = {"Content-Type": "text/plain"}
    assert_refused(httpx.post(url, content=b"model=echo", headers=text, timeout=DEADLINE), 415)


def test_a_web_page_of_another_origin_may_not_start_an_agent(open_server):
    headers = {"Origin": "http://evil.example"}
    response = httpx.post(f"{open_server.url}/v1/responses", json=GOOD, headers=headers, timeout=DEADLINE)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


def test_a_null_is_as_good_as_nothing(open_server):
    more = dict.fromkeys(("stream", "background", "metadata", "previous_response_id", "conversation", "tools", "user"))
    response = httpx.post(f"{open_server.url}/v1/responses", json={**GOOD, **more}, timeout=DEADLINE)
    assert (response.status_code, response.json()["status"]) == (200, "completed")
