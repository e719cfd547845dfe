"""The situations in which an agent is stopped, and what the model says in them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.adapters.scenarios.chat import Chat

from frameworks_unmodified.log import Log
from stoppable.testing import ModelServer, Reply, ToolCall

_FURTHER_TURNS = 60
_THINKING_SECONDS, _LONG_SECONDS = 0.3, 0.7
_TOKENS_PER_SECOND = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The model asks for `tools`, again and again; the stop comes after so many requests, tokens and effects."""

    name: str
    what: str
    tools: tuple[str, ...] = ("book_async",)
    runs: tuple[str, ...]
    """What the receipt must name."""
    answers_late: bool = False
    is_streamed: bool = False
    delegates: bool = False
    requests: int = 1
    tokens: int = 0
    effects: int = 0

    def is_reached(self, server: ModelServer, log: Log) -> bool:
        return (
            len(server.requests) >= self.requests
            and server.tokens_sent >= self.tokens
            and log.count("effect") >= self.effects
        )

    def script(self, chat: type[Chat]) -> list[Reply]:
        replies = [
            Reply(tool_calls=_calls(turn, self.tools), delay=_THINKING_SECONDS) for turn in range(1, _FURTHER_TURNS)
        ]
        if self.is_streamed:
            replies.insert(0, Reply(" ".join(["word"] * 20), rate=_TOKENS_PER_SECOND))
        if self.answers_late:
            replies.insert(0, Reply(tool_calls=_calls(0, self.tools), delay=_LONG_SECONDS))
        if self.delegates:
            task = json.dumps({chat.HELPER: "book a trip"})
            replies.insert(0, Reply(tool_calls=[ToolCall(name="helper", arguments=task, id="call-helper")]))
        return replies


def _calls(turn: int, tools: tuple[str, ...]) -> list[ToolCall]:
    return [ToolCall(name=tool, id=f"call-{turn}-{tool}") for tool in tools]


SCENES = (
    Scene(name="a", what="a model call that will ask for a tool", runs=("llm:",), answers_late=True),
    Scene(name="b", what="a stream, after 5 of 20 tokens", runs=("llm:",), is_streamed=True, tokens=5),
    Scene(name="c", what="a sync tool", tools=("book_sync",), runs=("book_sync",), effects=2),
    Scene(name="d", what="an async tool", runs=("book_async",), effects=2),
    Scene(
        name="e",
        what="an async and a sync tool that the model asked for together",
        tools=("book_async", "book_sync"),
        runs=("book_async", "book_sync"),
        effects=3,
    ),
    Scene(
        name="e_sub",
        what="an async tool of an agent that is a tool of another one",
        runs=("book_async",),
        delegates=True,
        effects=2,
    ),
)
