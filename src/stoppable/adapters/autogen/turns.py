"""What one call of an agent has done, and how the rest of it gets into its model context after a stop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    ModelClientStreamingChunkEvent,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)
from autogen_core.models import AssistantMessage, FunctionExecutionResult, FunctionExecutionResultMessage

import stoppable
from stoppable.adapters.turn import NOT_KNOWN, Turn

NO_ANSWER = "The run was stopped before this agent had answered."
"""What the others in a team are told of an agent that was stopped in its turn."""

_THOUGHTS = re.compile(r"<think>.*?(</think>\s*|$)", re.DOTALL)
"""How model clients of AutoGen mark what a model does not say to the user."""

_SEAL_SECONDS = 5.0

_last_turns: weakref.WeakKeyDictionary[Any, AgentTurn] = weakref.WeakKeyDictionary()
"""The last turn of each agent; it must not refer to the agent."""


def last_words(agent: Any, *, has_begun: bool) -> str:
    """Return what an agent that was stopped in its turn has done and said, for the others in its team."""
    turn = _last_turns.get(agent) if has_begun else None
    return "\n".join([*(turn.words() if turn is not None else ()), NO_ANSWER])


class AgentTurn(Turn):
    """One call of an agent inside a run.

    An agent adds the calls that its model asks for to its model context before it executes them, and their results when
    all have ended; the text of a model, when the model has said all of it.
    """

    def __init__(self, agent: Any, *, is_internal: bool) -> None:
        super().__init__()
        self._name = agent.name
        self._context = agent.model_context
        self._is_internal = is_internal
        self._call_ids: list[str] = []  # those that have no results in the context
        self._kept: list[FunctionExecutionResult] = []
        self._executing: set[asyncio.Task[Any]] = set()
        self._has_streamed = False

    # What happens in it

    async def open(self, agent: Any) -> None:
        """Answer the calls that an earlier turn has left open: one that was cancelled, or whose process ended."""
        last_turn, _last_turns[agent] = _last_turns.get(agent), self

        def result_of(call: Any) -> FunctionExecutionResult:
            if last_turn is not None and call.id in last_turn._call_ids:
                return last_turn.result_of(call)
            return _result(call, NOT_KNOWN)

        await _answer_calls(self._context, result_of)

    def note(self, event: Any) -> None:
        """Note an event of the agent; those of an agent that is its tool come between a request and its execution."""
        if isinstance(event, ToolCallExecutionEvent):
            if [result.call_id for result in event.content] == self._call_ids:
                self._kept += event.content
                self._call_ids = []
                self.clear()
        elif self._call_ids:
            return
        elif isinstance(event, ModelClientStreamingChunkEvent):
            self._has_streamed = True
            self.say(event.content)
            self._record(event.content)
        elif isinstance(event, ToolCallRequestEvent):
            self._call_ids = [call.id for call in event.content]
            self.forget_text()
        elif isinstance(event, Response):
            self.forget_text()
            if isinstance(event.chat_message, TextMessage) and not self._has_streamed:
                self._record(event.chat_message.content)

    def _record(self, text: str) -> None:
        """Add text of the model to the partial of the run, unless another agent gets it as the result of a tool."""
        if not self._is_internal:
            stoppable.append_partial(text)

    @contextlib.contextmanager
    def executing(self, call_id: str) -> Iterator[None]:
        """Let the block be the execution of a tool call."""
        task = asyncio.current_task()
        assert task is not None, "AutoGen executes each call in a task"
        self._executing.add(task)
        self.begin(call_id)
        try:
            yield
        finally:
            self._executing.discard(task)

    # What is known of it

    def result_of(self, call: Any) -> FunctionExecutionResult:
        """Return what the model is told of a call."""
        answer = self.answer(call.id)
        if answer.is_result:
            result: FunctionExecutionResult = answer.result
            return result
        return _result(call, answer.text)

    def words(self) -> list[str]:
        """Return the results of its tools and the text so far."""
        return [*(result.content for result in self._kept), *filter(None, [self._said()])]

    def _said(self) -> str:
        text = _THOUGHTS.sub("", self.text)
        return text if text.strip() else ""

    # The end

    async def complete(self) -> None:
        """Add to the model context what the agent has not added, if the run was stopped."""
        run = stoppable.current_run()
        if run is not None and run.token.stopped and self._executing:
            with stoppable.shielded(_SEAL_SECONDS):  # they were cancelled as well: their clean-up must not be cut
                await asyncio.wait(self._executing, timeout=_SEAL_SECONDS)
        await self.seal(self._write)

    async def _write(self) -> None:
        self._kept += await _answer_calls(self._context, self.result_of)
        if text := self._said():
            await self._context.add_message(AssistantMessage(content=text, source=self._name))


def _result(call: Any, text: str) -> FunctionExecutionResult:
    return FunctionExecutionResult(content=text, name=call.name, call_id=call.id, is_error=True)


async def _answer_calls(
    context: Any, result_of: Callable[[Any], FunctionExecutionResult]
) -> list[FunctionExecutionResult]:
    """Add results for the calls that are the last message of a model context, and return them."""
    messages: list[Any] = await context.get_messages()
    if not messages or not isinstance(messages[-1], AssistantMessage) or isinstance(messages[-1].content, str):
        return []
    results = [result_of(call) for call in messages[-1].content]
    await context.add_message(FunctionExecutionResultMessage(content=results))
    return results
