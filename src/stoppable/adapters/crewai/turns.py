"""What an agent has done in one task or kickoff, and how the rest of it gets into its messages after a stop."""

from __future__ import annotations

import contextlib
import contextvars
import json
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import stoppable
from stoppable import Run
from stoppable.adapters.crewai import names
from stoppable.adapters.turn import Turn

Finish = Callable[[Any], None]
"""Takes the result of a call."""

_have_spoken: weakref.WeakSet[Run] = weakref.WeakSet()
"""The runs whose partial has text of a stream."""


class AgentTurn(Turn):
    """One call of an agent's executor inside a run.

    An executor has the messages of its turn, to which it adds the calls of a step before it executes them, and the
    results and the text when they are complete. ``agent.last_messages`` gets them when the turn has ended; after a stop
    that is done here, with the text so far and an answer to each tool call.
    """

    def __init__(self, executor: Any, run: Run, *, is_below: bool) -> None:
        super().__init__()
        self.executor = executor
        self.run: Run = run
        self._is_below = is_below
        self._is_over = False
        self._ending = threading.Lock()
        self._is_speaking = False

    @property
    def is_over(self) -> bool:
        """Whether a stop has ended it; a thread of it may go on."""
        return self._is_over

    # What happens in it

    def hear(self, text: str) -> None:
        """Note a piece of text that the model streams."""
        with self._ending:
            if self._is_over:  # the messages are complete, while the thread of the model goes on
                return
            self.say(text)
            if not self._is_below:  # what a coworker says is no answer
                is_first, self._is_speaking = not self._is_speaking, True
                stoppable.append_partial("\n\n" + text if is_first and self.run in _have_spoken else text)
                _have_spoken.add(self.run)

    def ask(self) -> None:
        """Note that the model is asked again: what it said before is in the messages, as far as CrewAI keeps it."""
        self.forget_text()
        self._is_speaking = False

    @contextlib.contextmanager
    def executing(self, call_id: Hashable) -> Iterator[Finish]:
        """Let the block be the execution of a tool call; ``begin`` is called where its tool is."""

        def finish(result: Any) -> None:
            self.finish(call_id, result)
            if self._is_over:  # the task that waited for this thread was cancelled
                self._write()

        token = _call.set((self, call_id))
        try:
            yield finish
        finally:
            _call.reset(token)

    # The end

    def leave(self) -> None:
        """Complete the messages if the run was stopped."""
        with self._ending:
            self._is_over = self.run.token.stopped
            if self._is_over:
                self._write()

    def _write(self) -> None:
        agent = self.executor.agent
        if agent is not None:
            names.set_last_messages(agent, self._messages())

    def _messages(self) -> list[dict[str, Any]]:
        """Return the messages of the executor, with what is missing."""
        messages = [_kept(message) for message in list(self.executor.messages)]
        text = self._unsaved_text(messages)
        if calls := names.open_calls(self.executor):
            messages.append({"role": "assistant", "content": "", "tool_calls": [_as_message(*call) for call in calls]})
        request, answered = _last_request(messages)
        unanswered = [call for call in request.get("tool_calls", ()) if call["id"] not in answered]
        if unanswered and not request["content"]:
            request["content"], text = text, ""
        messages += [
            {
                "role": "tool",
                "content": self.answer(call["id"]).text,
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
            }
            for call in unanswered
        ]
        if text:
            messages.append({"role": "assistant", "content": text})
        return messages

    def _unsaved_text(self, messages: list[dict[str, Any]]) -> str:
        """Return what the model has said and the messages do not have, with the result of a tool that it named."""
        answer = self.executor.state.current_answer
        said = {str(message.get("content")).strip() for message in messages if message["role"] == "assistant"}
        complete = getattr(answer, "text", None)
        if not isinstance(complete, str) or complete.strip() in said:
            return "" if self.text.strip() in said else self.text.strip()
        if hasattr(answer, "tool"):
            return f"{complete.strip()}\nObservation: {self.answer(call_of(answer)).text}"
        return complete.strip()


_KEYS = ("role", "tool_calls", "tool_call_id", "name")
"""What CrewAI keeps of a message, too, besides its content."""


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    return {key: message[key] for key in _KEYS if message.get(key)} | {"content": message.get("content") or ""}


def _last_request(messages: list[dict[str, Any]]) -> tuple[dict[str, Any], set[str]]:
    """Return the last message that asks for tools, and the ids of the calls that are answered after it."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.get("tool_calls"):
            return message, answered
        answered.add(message.get("tool_call_id", ""))
    return {}, answered


def call_of(action: Any) -> Hashable:
    """Return what stands for the call of an action, which a model writes as text, without an id."""
    return ("action", id(action))


def _as_message(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


current: contextvars.ContextVar[AgentTurn | None] = contextvars.ContextVar("stoppable-crewai", default=None)
"""The turn of the agent that executes the calling code."""

_call: contextvars.ContextVar[tuple[AgentTurn, Hashable] | None] = contextvars.ContextVar(
    "stoppable-crewai-call", default=None
)
"""The call of a model that the calling code executes."""


def begin_call() -> None:
    """Note that the tool begins that a model has called."""
    call = _call.get()
    if call is not None:
        turn, call_id = call
        turn.begin(call_id)


@contextlib.contextmanager
def inside(turn: AgentTurn | None) -> Iterator[None]:
    """Make a turn the current one in the block."""
    token, call = current.set(turn), _call.set(None)
    try:
        yield
    finally:
        _call.reset(call)
        current.reset(token)
