"""The judge gives each score for what was seen, and for nothing else."""

from dataclasses import replace

import pytest

from stopbench.judge import SCORES, is_wrong, judge
from stopbench.model_server import Request
from stopbench.observation import NextTurn, Observation
from stopbench.results import Cell
from stopbench.scenarios import ANSWER, FIRST, NEXT
from stopbench.tools import Event


def conversation(tool="book_sync", *more):
    call = {"id": "1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [
        {"role": "user", "content": FIRST},
        {"role": "assistant", "content": "word1 ", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "It was stopped."},
        *more,
        {"role": "user", "content": NEXT},
    ]


def event(at, kind="effect", tool="book_sync"):
    return Event(at=at, pid=7, kind=kind, tool=tool)


def stopped(scenario="sync tool", messages=None, **changes):
    """Return what is seen of a stop in which everything is right: pressed at 10, reported at 11."""
    seen = Observation(
        scenario=scenario,
        pressed=10.0,
        called=10.0,
        reported=11.0,
        state="stopped",
        events=[event(9.5, "begin"), event(9.9), event(10.5)],
        requests=[Request(at=9.0, messages=[], tokens=[9.1, 9.2], ending="sent")],
        next_turn=NextTurn(messages=conversation() if messages is None else messages, ended=True),
    )
    return replace(seen, **changes)


def wrong(seen):
    return [name for name, score in judge(seen).items() if score.is_wrong]


def value(seen, name):
    return judge(seen)[name].value


def test_a_right_stop_has_every_score_that_has_a_meaning_and_none_is_wrong():
    scores = judge(stopped())
    assert [*scores, "processes left"] == sorted(
        SCORES, key=lambda name: list(scores).index(name) if name in scores else 99
    )
    assert not is_wrong(scores)


def test_effects_count_from_the_report_on():
    seen = stopped(events=[event(10.9), event(11.1), event(11.2), event(11.3, "cleaned")])
    assert value(seen, "effects after") == 2
    assert wrong(seen) == ["effects after", "state"]


def test_an_effect_between_the_press_and_the_report_is_no_mistake():
    assert wrong(stopped(events=[event(10.99)])) == []


def test_commands_that_are_left_count():
    messages = conversation("run_command")
    seen = stopped("subprocess tree", messages, left=["python command.py tree", "python command.py leaf"])
    assert value(seen, "processes left") == 2
    assert wrong(seen) == ["processes left", "state"]
    assert wrong(replace(seen, left=[])) == []


def test_a_command_that_has_an_effect_after_the_report_was_left_also_if_nobody_saw_it():
    late = [replace(event(11.1, tool="command-leaf"), pid=pid) for pid in (1, 2, 2)]
    assert value(stopped("subprocess tree", conversation("run_command"), events=late), "processes left") == 2


def test_tokens_count_when_the_model_has_had_time_to_notice():
    [request] = stopped().requests
    assert wrong(stopped(requests=[replace(request, tokens=[11.2])])) == []
    seen = stopped(requests=[replace(request, tokens=[11.2, 11.3, 11.4])])
    assert value(seen, "tokens after") == 2
    assert wrong(seen) == ["tokens after", "state"]


def test_a_model_call_after_the_report_is_wrong_also_without_a_token():
    seen = stopped(requests=[Request(at=11.1, messages=[])])
    assert wrong(seen) == ["tokens after", "begun", "state"]


def test_what_begins_after_the_press_is_wrong_also_before_the_report():
    assert wrong(stopped(events=[event(10.2, "begin")])) == ["begun"]
    seen = stopped(requests=[Request(at=10.2, messages=[])], events=[event(10.3, "begin")])
    assert value(seen, "begun") == 2
    assert wrong(seen) == ["begun"]


def test_what_begins_before_the_subject_has_got_the_press_is_no_mistake():
    assert wrong(stopped(events=[event(10.2, "begin")], called=10.3)) == []
    assert wrong(stopped(events=[event(10.2, "begin")], called=None)) == ["begun"]


@pytest.mark.parametrize(
    ("state", "answered", "words"),
    [
        ("stopped", None, ""),
        ("completed", None, "said completed"),
        ("completed", 10.5, ""),
        ("stopped", 10.5, "said stopped, and had completed"),
        ("failed", None, "said failed"),
        ("lost", None, "said lost, and had ended"),
    ],
)
def test_a_state_is_what_happened_or_a_lie(state, answered, words):
    score = judge(stopped(state=state, answered=answered))["state"]
    assert (score.words, score.is_wrong) == (words, bool(words))


def test_lost_is_true_if_something_goes_on_and_stopped_is_not():
    seen = stopped(events=[event(11.5)])
    assert judge(seen)["state"].words == "said stopped, and went on"
    assert wrong(replace(seen, state="lost")) == ["effects after"]


def test_at_the_last_moment_both_states_may_be_true():
    messages = [{"role": "user", "content": FIRST}, {"role": "assistant", "content": ANSWER}]
    for state in ("stopped", "completed"):
        seen = stopped("last moment", messages, state=state, answered=9.9, events=[])
        assert wrong(seen) == []
    assert wrong(stopped("last moment", messages[:1], state="completed", answered=9.9, events=[])) == ["kept"]


def test_a_turn_without_an_end_is_wrong_and_has_no_scores_of_the_end():
    seen = stopped(reported=None, state="", next_turn=None)
    assert wrong(seen) == ["state", "next turn"]
    assert {"effects after", "tokens after", "seconds"}.isdisjoint(judge(seen))


def test_a_stop_that_raises_is_wrong():
    assert judge(stopped(stop_error="RuntimeError: no"))["state"].words == "the stop raised RuntimeError"


@pytest.mark.parametrize(
    ("turn", "word"),
    [
        (NextTurn(messages=conversation(), ended=True, refused=True, error="400"), "refused"),
        (NextTurn(messages=conversation(), ended=False), "hangs"),
        (NextTurn(messages=None, ended=True), "nothing asked"),
        (NextTurn(messages=conversation(), ended=True, error="KeyError"), "failed"),
    ],
)
def test_the_next_turn_is_fine_or_it_is_said_why_not(turn, word):
    seen = stopped(next_turn=turn)
    assert value(seen, "next turn") == word
    assert wrong(seen) == ["next turn"]


def test_a_stop_may_take_as_long_as_what_is_in_flight():
    assert wrong(stopped(reported=14.9)) == []
    assert wrong(stopped(reported=15.1)) == ["seconds"]
    assert value(stopped(reported=10.25), "seconds") == 0.25


def test_what_the_next_turn_does_not_know_is_forgotten():
    assert judge(stopped(messages=conversation()[-1:]))["kept"].words == "forgot the message, the call"
    text = {"role": "assistant", "content": "word1 word2 word3 word4"}
    assert wrong(stopped("stream", [conversation()[0], text])) == []
    assert judge(stopped("stream", conversation()))["kept"].words == "forgot the text"


def test_a_finished_result_is_worth_keeping():
    result = {"role": "tool", "tool_call_id": "2", "content": "look_up done"}
    events = [event(9.5, "begin")]
    assert wrong(stopped("parallel tools", conversation("book_async", result), events=events)) == []
    assert (
        judge(stopped("parallel tools", conversation("book_async"), events=events))["kept"].words == "forgot the result"
    )


def test_the_call_of_a_sub_agent_is_that_of_the_tool_helper():
    assert wrong(stopped("sub-agent", conversation("helper"))) == []
    assert wrong(stopped("sub-agent", conversation("book_async"))) == ["kept"]


def test_clean_up_has_to_come_to_its_end_once():
    messages = conversation("book_with_clean_up")
    right = [event(9.5, "begin"), event(10.1, "cleaning"), event(10.4, "cleaned")]
    assert wrong(stopped("double stop", messages, events=[*right[:2], event(11.1, "cleaned")])) == ["kept"]
    assert wrong(stopped("double stop", messages, events=right)) == []
    assert wrong(stopped("double stop", messages, events=right[:2])) == ["kept"]
    assert wrong(stopped("double stop", messages, events=right[:1])) == ["kept"]


def test_an_agent_whose_server_was_killed_may_fail_but_not_wait_for_ever():
    messages = conversation("book_async")
    assert wrong(stopped("server killed", messages, state="failed")) == []
    assert wrong(stopped("server killed", messages, state="stopped")) == ["state"]
    assert wrong(stopped("server killed", reported=None, state="", next_turn=None)) == ["state", "next turn"]


def test_a_cell_has_the_worst_of_its_trials_and_says_what_flips():
    cell = Cell(subject="a", variant="plain", scenario="sync tool")
    for events in ([], [event(11.5)], [event(11.5), event(11.6)]):
        cell.add(stopped(events=events))
    assert cell.worst("effects after").value == 2
    assert cell.wrong() == ["effects after", "state"]
    assert cell.flips() == ["effects after", "state"]
    cell.add(stopped(failure="not measured"))
    assert (len(cell.trials), cell.failures) == (3, ["not measured"])


def test_an_observation_survives_its_way_as_json():
    seen = stopped("parallel tools", left=["x"])
    assert Observation.from_json(seen.as_json()) == seen
