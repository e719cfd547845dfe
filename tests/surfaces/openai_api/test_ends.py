"""What a turn has said, and how its end is put into a sentence."""

import pytest

from stoppable import Reason, Status
from stoppable.server.surfaces.ends import End, text_of


def end(status=Status.COMPLETED, said="", **more):
    return End(run_id="a", status=status, said=said, facts={}, **more)


@pytest.mark.parametrize(
    ("said", "result", "text"),
    [
        ("", None, ""),
        ("", "answer", "answer"),
        ("", {"a": 1}, '{"a":1}'),
        ("", 0, "0"),
        ("the answer", "answer", "the answer"),
        ("the answer\n", "answer", "the answer\n"),
        ("the ans", "the answer", "the answer"),
        ("note 1\n", "answer", "note 1\nanswer"),
        ("note 1", "answer", "note 1\nanswer"),
        ("note", {"a": 1}, "note"),
        ("note", None, "note"),
    ],
)
def test_a_result_is_said_once_and_after_what_was_said(said, result, text):
    one = end(said=said, result=result)
    assert one.text == text
    assert one.text.startswith(said)


@pytest.mark.parametrize("status", [Status.STOPPED, Status.FAILED, Status.LOST])
def test_the_result_of_a_turn_that_was_not_completed_is_no_answer(status):
    assert end(status, "so far", result="late").text == "so far"


def test_a_sentence_says_what_is_known_and_what_is_not():
    why = Reason.of("enough", actor="ann")
    assert end(Status.STOPPED, reason=why).sentence == "Stopped: enough (ann). Everything it started has ended."
    told = end(Status.STOPPED, reason=why, told=("mcp:search",)).sentence
    assert told.endswith("Everything it started has ended, but mcp:search, which cannot confirm it.")
    lost = end(Status.LOST, reason=why, alive=("x.py:3 in work",)).sentence
    assert lost == "The stop is not confirmed: x.py:3 in work may still be running."
    assert end(Status.FAILED, error="ValueError: no").sentence == "ValueError: no"


@pytest.mark.parametrize(
    ("partial", "text"), [(None, ""), ("a", "a"), (["a", 1, {"b": 2}], 'a1\n{"b":2}\n'), ({"a": 1}, '{"a":1}\n')]
)
def test_a_partial_that_is_no_text_is_lines_of_json(partial, text):
    assert text_of(partial) == text
