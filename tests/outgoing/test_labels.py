"""Which requests are model calls, and under which name they are listed."""

import pytest

from stoppable._engine.outgoing import calls

MODEL_CALLS = [
    ("api.openai.com", "/v1/chat/completions"),
    ("api.openai.com", "/v1/responses"),
    ("api.openai.com", "/v1/embeddings"),
    ("api.anthropic.com", "/v1/messages"),
    ("generativelanguage.googleapis.com", "/v1beta/models/gemini-2:generateContent"),
    ("generativelanguage.googleapis.com", "/v1beta/models/gemini-2:streamGenerateContent"),
    ("aiplatform.googleapis.com", "/v1/projects/p/models/claude:streamRawPredict"),
    ("api.mistral.ai", "/v1/fim/completions"),
    ("api.cohere.com", "/v2/chat"),
    ("127.0.0.1:11434", "/api/generate"),
    ("bedrock-runtime.eu-central-1.amazonaws.com", "/model/anthropic.claude-v2%3A1/converse-stream"),
    ("bedrock-runtime.eu-central-1.amazonaws.com", "/model/claude/invoke-with-response-stream"),
]


@pytest.mark.parametrize(("host", "path"), MODEL_CALLS)
def test_the_paths_of_the_providers_are_model_calls(host, path):
    assert calls.request_label("post", host, path) == ("llm", f"{host}{path}")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/chat/completions"), ("POST", "/search"), ("POST", "/v1/messages/batches")]
)
def test_other_requests_are_not(method, path):
    assert calls.request_label(method, "example.com", path) == ("http", f"{method} example.com{path}")


def test_the_model_is_named_if_the_body_says_it_and_the_query_never_is():
    body = b'{"messages": [{"content": "say \\"model\\": \\"x\\""}], "model": "gpt-5"}'
    for sent in (body, body.decode(), bytearray(body)):
        label = calls.request_label("POST", "host", "/v1/chat/completions?key=secret", sent)
        assert label == ("llm", "host/v1/chat/completions gpt-5")
    assert calls.request_label("POST", "host", "/v1/chat/completions", iter([body])).name == "host/v1/chat/completions"


def test_what_may_be_a_key_in_a_path_is_not_shown():
    label = calls.request_label("POST", "api.example.org", "/bot123456789:AAEhBOweik6ad9r_QXMENQjcrGbqCr4K/send")
    assert label.name == "POST api.example.org/…/send"


def test_control_characters_and_long_names_do_not_reach_a_terminal():
    label = calls.request_label("GET", "host", "/\x1b[31m/" + "a/" * 200)
    assert "\x1b" not in label.name
    assert len(label.name) <= 120


def test_the_environment_can_name_further_model_calls(monkeypatch):
    monkeypatch.setenv(calls.MODEL_URLS, "https://llm.example.com/ask*, models.internal/*,")
    assert calls.request_label("POST", "llm.example.com", "/ask/now").kind == "llm"
    assert calls.request_label("POST", "models.internal", "/x").kind == "llm"
    assert calls.request_label("POST", "example.com", "/ask").kind == "http"
    assert calls.websocket_label("models.internal", "/x").kind == "llm"


def test_calls_of_grpc_and_websockets():
    method = "/google.ai.generativelanguage.v1.GenerativeService/GenerateContent"
    assert calls.grpc_label("host:443", method) == ("llm", f"host:443{method}")
    assert calls.grpc_label("", "/shop.Orders/Place") == ("http", "shop.Orders/Place")
    assert calls.websocket_label("api.openai.com", "/v1/realtime?model=gpt") == ("llm", "WS api.openai.com/v1/realtime")
    assert calls.websocket_label("example.com", "/feed") == ("http", "WS example.com/feed")
