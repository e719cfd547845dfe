"""What a stop was worth: eight scores, none of which stands for another.

It sees nothing but an observation, so nothing of the subject can talk to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stopbench.model_server import text_of
from stopbench.observation import Observation
from stopbench.scenarios import ANSWER, FIRST, SCENARIOS, Scenario

SLOW_SECONDS = 5.0
"""Longer than anything that is in flight takes."""
CLOSING_SECONDS = 0.25
"""In which the model notices that its client has left: tokens of this time do not count."""
TEXT = "word1 word2 word3"
"""What the user has certainly read of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One score of one stop."""

    value: Any
    """A number, or a word."""
    is_wrong: bool
    words: str = ""
    """What is wrong, in short."""


SCORES = {
    "effects after": "effects of tools after the caller was told that the turn has ended",
    "processes left": "commands of tools that were still running then",
    "tokens after": "tokens that the model produced after that, and model calls that began",
    "begun": "tools and model calls that began after the agent's process had got the stop",
    "state": "what the caller was told: whether it is true",
    "next turn": "whether a strict provider takes the conversation when the user writes again",
    "seconds": "from the press to the end",
    "kept": "what the conversation still knows in the next turn",
}


def judge(seen: Observation) -> dict[str, Score]:
    """Return the scores of a stop, in the order of `SCORES`; those that have no meaning in it are left out."""
    scores = {name: score(seen, SCENARIOS[seen.scenario]) for name, score in _JUDGES.items()}
    return {name: score for name, score in scores.items() if score is not None}


def is_wrong(scores: dict[str, Score]) -> bool:
    """Return whether any score is wrong."""
    return any(score.is_wrong for score in scores.values())


# The scores


def effects_after(seen: Observation, scenario: Scenario) -> Score | None:
    if seen.reported is None:
        return None
    count = sum(event.kind == "effect" and event.at > seen.reported for event in seen.events)
    return Score(value=count, is_wrong=count > 0, words=_plural(count, "effect") + " after the end")


def processes_left(seen: Observation, scenario: Scenario) -> Score | None:
    if "run_command" not in scenario.tools:
        return None
    # On a busy machine they may end before the harness can look: who has an effect after the report was alive then.
    late = [event for event in seen.events if seen.reported is not None and event.at > seen.reported]
    count = max(len(seen.left), len({event.pid for event in late if event.tool.startswith("command")}))
    return Score(value=count, is_wrong=count > 0, words=_plural(count, "process", "processes") + " left")


def tokens_after(seen: Observation, scenario: Scenario) -> Score | None:
    if seen.reported is None:
        return None
    late = seen.reported + CLOSING_SECONDS
    tokens = sum(at > late for request in seen.requests for at in request.tokens)
    calls = sum(request.at > seen.reported for request in seen.requests)
    words = [_plural(tokens, "token") + " after the end"] if tokens else []
    words += [_plural(calls, "model call") + " after the end"] if calls else []
    return Score(value=tokens, is_wrong=bool(tokens or calls), words=", ".join(words))


def begun(seen: Observation, scenario: Scenario) -> Score | None:
    if seen.pressed is None or scenario.ends_server:
        return None
    called = seen.pressed if seen.called is None else seen.called
    tools = sum(event.kind == "begin" and event.at > called for event in seen.events)
    calls = sum(request.at > called for request in seen.requests)
    words = [_plural(tools, "tool") + " begun"] if tools else []
    words += [_plural(calls, "model call") + " begun"] if calls else []
    return Score(value=tools + calls, is_wrong=bool(tools or calls), words=", ".join(words))


def state(seen: Observation, scenario: Scenario) -> Score | None:
    lie = _lie(seen, scenario)
    return Score(value=seen.state or "no end", is_wrong=bool(lie), words=lie)


def _lie(seen: Observation, scenario: Scenario) -> str:
    """Return what is not true about the state that was reported, or an empty text."""
    if seen.stop_error:
        return f"the stop raised {seen.stop_error.split(':')[0]}"
    if scenario.ends_server:
        return "" if seen.state in ("failed", "completed") else f"said {seen.state or 'nothing'}"
    goes_on = [score(seen, scenario) for score in (effects_after, processes_left, tokens_after)]
    is_alive = any(score is not None and score.is_wrong for score in goes_on)
    match seen.state:
        case "stopped" if is_alive:
            return "said stopped, and went on"
        case "stopped" if seen.answered is not None and scenario.moment != "answer":
            return "said stopped, and had completed"
        case "completed" if seen.answered is None:
            return "said completed"
        case "lost" if not is_alive:
            return "said lost, and had ended"
        case "stopped" | "completed" | "lost":
            return ""
        case "":
            return "no end"
        case other:
            return f"said {other}"


def next_turn(seen: Observation, scenario: Scenario) -> Score | None:
    turn = seen.next_turn
    if turn is None:
        return Score(value="not possible", is_wrong=True, words="no next turn")
    if turn.refused:
        word = "refused"
    elif not turn.ended:
        word = "hangs"
    elif turn.messages is None:
        word = "nothing asked"
    elif turn.error:
        word = "failed"
    else:
        return Score(value="fine", is_wrong=False)
    return Score(value=word, is_wrong=True, words=f"next turn: {word}")


def seconds(seen: Observation, scenario: Scenario) -> Score | None:
    if seen.pressed is None or seen.reported is None:
        return None
    taken = max(0.0, seen.reported - seen.pressed)
    return Score(value=round(taken, 3), is_wrong=taken > SLOW_SECONDS, words=f"took {taken:.1f} s")


def kept(seen: Observation, scenario: Scenario) -> Score | None:
    worth = _worth_keeping(seen, scenario)
    if seen.next_turn is None or seen.next_turn.messages is None or not worth:
        return None
    lost = [name for name, is_kept in worth.items() if not is_kept(seen)]
    value = f"{len(worth) - len(lost)} of {len(worth)}"
    return Score(value=value, is_wrong=bool(lost), words=f"forgot {', '.join(lost)}")


_JUDGES: dict[str, Callable[[Observation, Scenario], Score | None]] = {
    "effects after": effects_after,
    "processes left": processes_left,
    "tokens after": tokens_after,
    "begun": begun,
    "state": state,
    "next turn": next_turn,
    "seconds": seconds,
    "kept": kept,
}


# What there is to keep


def _worth_keeping(seen: Observation, scenario: Scenario) -> dict[str, Callable[[Observation], bool]]:
    """Return what the next turn should know, by name, with the question whether it does."""
    worth: dict[str, Callable[[Observation], bool]] = {}
    if scenario.moment == "start":
        return worth  # whether a message that was never begun counts is a matter of taste
    worth["the message"] = lambda seen: any(FIRST in text_of(each) for each in _messages(seen, "user"))
    if scenario.is_streamed:
        worth["the text"] = lambda seen: any(TEXT in text_of(each) for each in _messages(seen, "assistant"))
    if scenario.moment == "answer" and seen.state == "completed":
        worth["the answer"] = lambda seen: any(ANSWER in text_of(each) for each in _messages(seen, "assistant"))
    if scenario.moment == "effect":
        tool = "helper" if scenario.delegates and seen.sub_agent else scenario.tools[-1]
        worth["the call"] = lambda seen: any(tool in json.dumps(each) for each in _messages(seen, "assistant"))
    if len(scenario.tools) > 1:
        done = f"{scenario.tools[0]} done"
        worth["the result"] = lambda seen: done in json.dumps(seen.next_turn.messages if seen.next_turn else [])
    if scenario.presses > 1:
        worth["the clean-up"] = lambda seen: _count(seen, "cleaned") == _count(seen, "begin")
    return worth


def _messages(seen: Observation, role: str) -> list[dict[str, Any]]:
    messages = (seen.next_turn.messages if seen.next_turn else None) or []
    return [message for message in messages if message["role"] == role]


def _count(seen: Observation, kind: str) -> int:
    """Return how many events of a kind there were until the end was reported."""
    return sum(event.kind == kind and event.at <= (seen.reported or event.at) for event in seen.events)


def _plural(count: int, what: str, many: str = "") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {many or what + 's'}"
