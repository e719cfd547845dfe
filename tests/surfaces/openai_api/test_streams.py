"""The events of a response are those of its log: without gaps, and the same when they are read again."""

import httpx
import openai
import pytest

from stoppable.server import ServerLimits

from .agents import GATES
from .conftest import DEADLINE, client_of, connected, newest, serving, wait_until


def said(events):
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def kinds(events):
    """Return the types of events, those that repeat once."""
    names = [event.type.removeprefix("response.") for event in events]
    return [name for name, before in zip(names, ["", *names], strict=False) if name != before]


WHOLE = [
    "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
    "output_text.done", "content_part.done", "output_item.done",
]  # fmt: skip


def test_a_stream_has_every_word_and_its_numbers_have_no_gap():
    with connected() as (_, client):
        events = list(client.responses.create(model="echo", input="one two three", stream=True))
        assert kinds(events) == [*WHOLE, "completed"]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        last = events[-1].response
        assert said(events) == last.output_text == "one two three "
        assert (last.status, last.output[0].status) == ("completed", "completed")


def test_a_client_resumes_after_any_event_and_sees_what_is_missing_and_nothing_else():
    with connected() as (_, client):
        with client.responses.create(model="waits", input="go", background=True, stream=True) as stream:
            seen = [next(stream) for _ in range(5)]
        assert said(seen) == "first "
        response_id = seen[0].response.id
        GATES.release.set()
        rest = list(client.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
        assert said(seen) + said(rest) == "first second third"
        assert kinds([*seen, *rest]) == [*WHOLE, "completed"]
        again = list(client.responses.retrieve(response_id, stream=True))
        numbers = [event.sequence_number for event in [*seen, *rest]]
        assert numbers == [event.sequence_number for event in again] == list(range(len(numbers)))
        assert [event.model_dump() for event in again] == [event.model_dump() for event in [*seen, *rest]]
        for number in range(-1, len(again)):
            part = list(client.responses.retrieve(response_id, stream=True, starting_after=number))
            assert part == again[number + 1 :]


def test_a_response_that_is_cancelled_while_it_is_read_ends_with_what_it_had_said():
    with connected() as (_, client):
        events = []
        for event in client.responses.create(model="waits", input="go", background=True, stream=True):
            events.append(event)
            if event.type == "response.output_text.delta":
                client.responses.cancel(events[0].response.id)
        assert kinds(events) == [*WHOLE, "incomplete"]
        last = events[-1].response
        assert (last.status, last.output_text, last.output[0].status) == ("cancelled", "first ", "incomplete")
        assert last == client.responses.retrieve(last.id)


def test_a_response_that_fails_keeps_what_it_had_said():
    with connected() as (_, client):
        events = list(client.responses.create(model="failing", input="go", stream=True))
        assert kinds(events) == [*WHOLE, "failed"]
        last = events[-1].response
        assert (last.status, last.output_text) == ("failed", "before ")
        assert (last.error.code, last.error.message) == ("server_error", "ValueError: the tool is broken")


def test_an_agent_that_says_nothing_has_no_output():
    with connected() as (_, client):
        events = list(client.responses.create(model="nothing", input="go", stream=True))
        assert kinds(events) == ["created", "in_progress", "completed"]
        assert events[-1].response.output == []


def test_items_of_a_generator_are_lines():
    with connected() as (_, client):
        events = list(client.responses.create(model="counting", input='{"count": 3}', stream=True))
        last = events[-1].response
        assert said(events) == last.output_text == "0\n1\n2\n"
        assert client.responses.retrieve(last.id) == last


def test_what_a_generator_has_yielded_is_kept_when_it_is_cancelled():
    with connected() as (_, client):
        words = ""
        for event in client.responses.create(model="counting", input='{"count": 200}', background=True, stream=True):
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                words += event.delta
                if event.delta == "99\n":
                    cancelled = client.responses.cancel(response_id)
        assert cancelled.status == "cancelled"
        assert cancelled.output_text == words == "".join(f"{number}\n" for number in range(100))


def test_a_text_that_is_replaced_is_right_at_the_end():
    with connected() as (_, client):
        events = list(client.responses.create(model="replacing", input="the answer", stream=True))
        assert said(events) == "a draft", "what was sent cannot be taken back"
        assert events[-1].response.output_text == "the answer"
        assert [event.text for event in events if event.type == "response.output_text.done"] == ["the answer"]


def test_the_stream_of_a_chat_is_its_answer():
    with connected() as (_, client):
        messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "one two"}]
        chunks = list(client.chat.completions.create(model="echo", messages=messages, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two "
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        assert {chunk.id for chunk in chunks} == {f"chatcmpl-{chunks[0].id.removeprefix('chatcmpl-')}"}


def test_a_stream_helper_of_the_client_reads_it():
    with connected() as (_, client), client.responses.stream(model="echo", input="one two") as stream:
        words = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(words) == stream.get_final_response().output_text == "one two "


def test_no_more_streams_than_there_may_be_are_opened_and_nothing_is_left_running():
    with serving(limits=ServerLimits(streams=1)) as service, client_of(service) as client:
        with client.responses.create(model="waits", input="one", background=True, stream=True) as stream:
            response_id = next(stream).response.id
            wait_until(GATES.reached.is_set)  # a stream begins before its agent
            with pytest.raises(openai.RateLimitError):
                client.responses.retrieve(response_id, stream=True)
            with pytest.raises(openai.RateLimitError):
                client.responses.create(model="waits", input="two", stream=True)
            assert GATES.calls == ["one"], "it was refused before its start"


def test_comments_keep_an_idle_stream_open_and_clients_ignore_them():
    with serving(limits=ServerLimits(heartbeat=0.01)) as service, client_of(service) as client:
        raw = {"model": "waits", "input": "go", "stream": True}
        with httpx.stream("POST", f"{service.url}/v1/responses", json=raw, timeout=DEADLINE) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            assert response.headers["stoppable-run-id"] == newest(service).id
            assert any(line == ":" for line in response.iter_lines())
        stream = client.responses.create(model="waits", input="go", stream=True)
        wait_until(GATES.reached.is_set)
        GATES.release.set()
        assert list(stream)[-1].response.output_text == "first second third"
