"""The scripted model speaks chat completions and two more formats, and records what its clients do."""

import http.client
import json
import socket
import threading

import pytest

from stoppable.testing.model_server import Ending, Failure, ModelServer, Pause, Reply, Stuck, ToolCall

MESSAGES = [{"role": "user", "content": "hello"}]


class Client(http.client.HTTPConnection):
    """A client without any library."""

    def __init__(self, server):
        super().__init__(*server._listener.getsockname(), timeout=5)

    def ask(self, **options):
        body = {"model": "test", "messages": MESSAGES} | options
        self.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer key"})
        return self.getresponse()

    def respond(self, **options):
        self.request("POST", "/v1/responses", json.dumps({"model": "test"} | options))
        return self.getresponse()

    def message(self, **options):
        self.request("POST", "/v1/messages?beta=true", json.dumps({"model": "test"} | options))
        return self.getresponse()

    def events(self, **options):
        for line in self.ask(stream=True, **options):
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def texts(events):
    return [event["choices"][0]["delta"]["content"] for event in events if event["choices"][0]["delta"].get("content")]


@pytest.fixture
def connect():
    clients = []

    def connect(server):
        clients.append(Client(server))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_a_reply_comes_whole_or_in_tokens_and_then_the_default_does(connect):
    with ModelServer(Reply("one two  three"), Reply(["a", "b"]), default=Reply("over")) as server:
        client = connect(server)
        answer = json.load(client.ask())
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "one two  three"}
        assert answer["usage"]["completion_tokens"] == 3
        assert texts(client.events()) == ["a", "b"]
        assert texts(client.events()) == ["over"]
        server.script(Reply("more"))
        assert texts(client.events()) == ["more"]
        client.close()
        assert server.wait_for_closed() == [Ending.AFTER_ANSWER]
    assert [(c.requests, c.answers) for c in server.connections] == [(4, 4)]
    assert server.tokens_sent == 3 + 2 + 1 + 1


def test_every_request_is_recorded(connect):
    with ModelServer() as server:
        client = connect(server)
        client.ask().read()
        client.request("GET", "/v1/models")
        assert [model["id"] for model in json.load(client.getresponse())["data"]] == ["scripted"]
        request = server.wait_for_request()
        assert (request.messages, request.is_streamed, request.connection) == (MESSAGES, False, 0)
        assert (request.headers["authorization"], request.body["model"]) == ("Bearer key", "test")
        assert server.wait_for_request(2).path == "/v1/models"


def test_tool_calls_and_usage_are_streamed(connect):
    reply = Reply(tool_calls=[ToolCall(name="search", arguments='{"q": 1}', id="1"), ToolCall(name="stop")])
    with ModelServer(reply, reply) as server:
        client = connect(server)
        choice = json.load(client.ask())["choices"][0]
        assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["id"]) == ("tool_calls", "1")
        *_, first, second, finish, usage = client.events(stream_options={"include_usage": True})
        assert first["choices"][0]["delta"]["tool_calls"][0]["function"]["name"] == "search"
        assert second["choices"][0]["delta"]["tool_calls"][0]["index"] == 1
        assert finish["choices"][0]["finish_reason"] == "tool_calls"
        assert usage["usage"]["total_tokens"] == 0


def test_a_gate_holds_tokens_back_until_they_are_released(connect):
    pause = Pause()
    with ModelServer(Reply("a b c d", pause=pause)) as server:
        events = connect(server).events()
        pause.release(2)
        assert texts([next(events) for _ in range(3)]) == ["a", " b"]
        server.mark_stop()
        assert (server.tokens_sent, server.tokens_after_stop) == (2, 0)
        pause.end()
        assert texts(events) == [" c", " d"]
        assert server.tokens_after_stop == 2


def test_a_client_that_leaves_in_the_middle_is_told_from_one_that_has_its_answer(connect):
    pause = Pause()
    with ModelServer(Reply("a b", pause=pause)) as server:
        client = connect(server)
        next(client.events())
        client.close()
        assert server.wait_for_closed() == [Ending.MID_ANSWER]
        pause.end()
    assert server.tokens_sent == 0


def test_a_reset_is_told_from_an_orderly_end():
    with ModelServer(Reply("a b", pause=Pause())) as server:
        client = socket.create_connection(server._listener.getsockname(), timeout=5)
        body = json.dumps({"messages": MESSAGES, "stream": True}).encode()
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        client.recv(1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert server.wait_for_closed() == [Ending.RESET]


def test_a_dropped_stream_is_a_reset_by_the_server(connect):
    with ModelServer(Reply("a b c", drop_after=2), Reply("a", drop_after=0)) as server:
        events = connect(server).events()
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead)):
            list(events)
        with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
            connect(server).ask()
        assert server.wait_for_closed(2) == [Ending.SERVER, Ending.SERVER]
    assert server.tokens_sent == 2


def test_failures_have_a_status_headers_and_a_body(connect):
    with ModelServer(Failure(429, "slow down", {"Retry-After": "0"})) as server:
        response = connect(server).ask()
        assert (response.status, response.headers["Retry-After"]) == (429, "0")
        assert json.load(response)["error"]["message"] == "slow down"


def test_what_it_does_not_understand_is_an_error(connect):
    with ModelServer() as server:
        client = connect(server)
        client.request("GET", "/elsewhere")
        response = client.getresponse()
        assert (response.status, "elsewhere" in response.read().decode()) == (404, True)
        client.request("POST", "/v1/chat/completions", "[")
        assert client.getresponse().status == 400


def test_the_end_of_the_server_ends_what_is_stuck(connect):
    with ModelServer(Stuck()) as server:
        client = connect(server)
        client.request("POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES}))
        server.wait_for_request()
    with pytest.raises(http.client.RemoteDisconnected):
        client.getresponse()
    assert [connection.ending for connection in server.connections] == [Ending.SERVER]


def test_a_server_that_nobody_asks_ends_too(monkeypatch):
    errors = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    for _ in range(50):
        with ModelServer():
            pass
    assert errors == []


def test_a_wait_that_is_in_vain_says_what_there_was():
    with (
        ModelServer() as server,
        pytest.raises(TimeoutError, match=r"no 1 requests within 0\.01 seconds; there were 0"),
    ):
        server.wait_for_request(within=0.01)


async def test_the_waits_have_twins_for_tasks(connect):
    with ModelServer() as server:
        client = connect(server)
        thread = threading.Thread(target=lambda: (client.ask().read(), client.close()))
        thread.start()
        assert (await server.wait_for_request_async()).messages == MESSAGES
        await server.wait_for_tokens_async(1)
        server.wait_for_tokens(1)
        assert await server.wait_for_closed_async() == [Ending.AFTER_ANSWER]
        thread.join(60)
        with pytest.raises(TimeoutError, match="no 2 requests"):
            await server.wait_for_request_async(2, within=0.01)


def test_a_slow_reply_and_a_rate_take_their_time(connect):
    with ModelServer(Reply("a b", rate=1000, delay=0.001)) as server:
        assert texts(connect(server).events()) == ["a", " b"]
        assert "1 of 1 answered, open" in repr(server.connections[0])


def test_it_speaks_the_responses_api_too(connect):
    call = ToolCall(name="search", arguments='{"q": 1}', id="call-1")
    with ModelServer(Reply("one two", tool_calls=[call]), Reply("one two", tool_calls=[call])) as server:
        client = connect(server)
        items = [
            {"role": "user", "content": "hello"},
            {"type": "function_call", "call_id": "0", "name": "search", "arguments": "{}"},
            {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "0", "output": "tides"},
        ]
        whole = json.load(client.respond(input="hello", instructions="be kind"))
        message, function_call = whole["output"]
        assert message["content"][0]["text"] == "one two"
        assert (function_call["call_id"], function_call["arguments"]) == ("call-1", '{"q": 1}')
        assert whole["usage"]["output_tokens"] == 2
        events = [json.loads(line[6:]) for line in client.respond(input=items, stream=True) if line.startswith(b"data")]
        assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == ["one", " two"]
        assert events[-1]["response"] == whole
        first, second = (request.messages for request in server.requests)
    assert first == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]
    assert [message["role"] for message in second] == ["user", "assistant", "tool"]
    assert [call["id"] for call in second[1]["tool_calls"]] == ["0", "1"]


def test_it_speaks_the_messages_api_too(connect):
    call = ToolCall(name="search", arguments='{"q": 1}', id="call-1")
    with ModelServer(*[Reply("one two", tool_calls=[call])] * 2, default=Reply(tool_calls=[call])) as server:
        client = connect(server)
        messages = [
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I search"},
                    {"type": "tool_use", "id": "0", "name": "search", "input": {"q": 0}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "0", "content": [{"type": "text", "text": "tides"}]},
                    {"type": "text", "text": "go on"},
                ],
            },
        ]
        whole = json.load(client.message(messages=messages[:1]))
        text, tool_use = whole["content"]
        assert text["text"] == "one two"
        assert (tool_use["id"], tool_use["input"], whole["stop_reason"]) == ("call-1", {"q": 1}, "tool_use")
        lines = [line.decode().strip() for line in client.message(messages=messages, stream=True)]
        events = [json.loads(line[6:]) for line in lines if line.startswith("data")]
        assert [line[7:] for line in lines if line.startswith("event")] == [event["type"] for event in events]
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        assert [delta.get("text") or delta["partial_json"] for delta in deltas] == ["one", " two", '{"q": 1}']
        assert events[0]["message"]["id"] != whole["id"], "clients take messages with one id for one message"
        silent = json.load(client.message(messages=messages))
        assert [block["type"] for block in silent["content"]] == ["tool_use"]
        first, second, _ = (request.messages for request in server.requests)
    assert first == [{"role": "user", "content": "hello"}]
    assert [message["role"] for message in second] == ["user", "assistant", "tool", "user"]
    assert [message["content"] for message in second] == ["hello", "I search", "tides", "go on"]
    assert [call["id"] for call in second[1]["tool_calls"]] == ["0"]


def test_a_request_of_the_responses_api_without_input_is_refused(connect):
    with ModelServer() as server:
        assert connect(server).respond().status == 400
