"""The text of model answers, from what arrives of them."""

import gzip
import json

import pytest
from tests.providers import TEXT, answer_to

import stoppable
from stoppable._core.node import RunNode
from stoppable._engine.outgoing import answers

PATHS = [
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1beta/models/gemini:generateContent",
    "/v2/chat",
    "/api/chat",
    "/model/claude/converse",
]


def text_of(*chunks):
    answer = answers.ModelAnswer()
    for chunk in chunks:
        answer.add(chunk)
    return answer.text()


@pytest.mark.parametrize("path", PATHS)
def test_the_whole_answer_of_every_provider_is_read(path):
    assert text_of(*answer_to(path, is_stream=False)) == TEXT


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_of_every_provider_is_read_as_far_as_it_has_come_wherever_it_was_cut(path):
    path = path.replace(":generate", ":streamGenerate")
    data = b"".join(answer_to(path, is_stream=True))
    assert text_of(data) == TEXT
    for end in range(0, len(data), 97):
        assert TEXT.startswith(text_of(data[:end]))
        assert text_of(data[:end], data[end:]) == TEXT


def test_compressed_answers_are_read():
    data = b"".join(answer_to("/v1/chat/completions", is_stream=True))
    assert text_of(gzip.compress(data)) == TEXT
    assert text_of(b"\x1f\x8bbroken") == ""


def test_older_and_other_forms():
    assert text_of(b'{"choices": [{"text": "old"}]}') == "old"
    assert text_of(b'{"choices": []}') == ""
    assert text_of(b'{"choices": [{"message": {"content": null, "tool_calls": []}}]}') == ""
    assert text_of(b'{"choices": [{"message": {"content": [{"type": "text", "text": "part"}]}}]}') == "part"
    assert text_of(b'data: {"event_type": "text-generation", "text": "one"}\n\n') == "one"
    assert text_of(b'{"generation_id": "1", "text": "cohere"}') == "cohere"
    assert text_of(b'{"response": "ollama", "done": false}\n{"response": "!", "done": true}\n') == "ollama!"
    assert text_of(b'[{"candidates": [{"content": {"parts": [{"text": "a"}]}}]},\n{"candidates": [{"con') == "a"
    thought = {"candidates": [{"content": {"parts": [{"text": "hm", "thought": True}, {"text": "yes"}]}}]}
    assert text_of(json.dumps(thought).encode()) == "yes"


@pytest.mark.parametrize("data", [b"", b"\x00\x00", b"\xff\xfe", b"[1, 2]", b'{"choices": 1}', b'{"type": 3}', b"text"])
def test_what_is_no_answer_is_no_text(data):
    assert text_of(data) == ""


def test_a_long_answer_is_read_as_it_comes_so_that_little_is_kept(monkeypatch):
    monkeypatch.setattr(answers, "_MOST_RAW", 300)
    answer = answers.ModelAnswer()
    for chunk in answer_to("/v1/chat/completions", is_stream=True):
        answer.add(chunk)
        assert sum(map(len, answer._raw)) <= 600
    assert answer.text() == TEXT
    picture = answers.ModelAnswer()
    picture.add(b"x" * 1000)
    assert not picture._raw


def test_the_partial_of_a_run_is_the_text_of_its_model_calls_in_order_until_the_agent_sets_its_own():
    run = RunNode("agent")
    first, second = answers.note_answer(run), answers.note_answer(run)
    assert run.partial is None
    second.add(b'{"choices": [{"text": "second"}]}')
    first.add(b'{"choices": [{"text": "first"}]}')
    assert run.partial == "first\n\nsecond"
    with stoppable.open_run("own") as own:
        answers.note_answer(own).add(b'{"choices": [{"text": "model"}]}')
        stoppable.append_partial("mine")
        assert own.partial == "mine"
        assert answers.note_answer(own) is None


def test_of_a_run_with_very_many_model_calls_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(answers, "_MOST_TEXT", 100)
    run = RunNode("agent")
    for number in range(128):
        answers.note_answer(run).add(b'{"choices": [{"text": "word %d"}]}' % number)
    texts = run.partial.split("\n\n")
    assert texts[-1] == "word 127"
    assert len(texts) < 80


def test_large_answers_without_text_are_not_kept():
    run = RunNode("agent")
    for _ in range(100):
        answers.note_answer(run).add(b'{"data": [' + b"0," * 100_000 + b"0]}")
    kept = sum(len(piece) for answer in (*run.recorded._complete, *run.recorded._newest) for piece in answer._raw)
    assert kept <= 32 * 200_100
