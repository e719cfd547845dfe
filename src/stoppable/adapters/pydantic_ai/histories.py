"""What the calls of agents have done, and the messages of a run for the next turn of its conversation.

Pydantic AI adds to its list of messages also on the way out, in tasks of its own, in an order that depends on what the
stop cut. So nothing is written to that list: the history is made of it when somebody asks for it.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)

import stoppable
from stoppable import Run, Status
from stoppable.adapters.turn import Turn


class AgentTurn(Turn):
    """One call of an agent inside a run."""

    def __init__(self, messages: list[ModelMessage], *, is_below: bool) -> None:
        super().__init__()
        self.messages: list[ModelMessage] = messages
        """The list that Pydantic AI adds to."""
        self._is_below = is_below

    @classmethod
    def open(cls, run: Run, call_id: str, messages: list[ModelMessage]) -> AgentTurn | None:
        """Return the turn of a call of an agent, or None if another capability of the agent has opened it.

        Its messages are the history of the run, unless it works for a tool of another agent.
        """
        if call_id in _open_turns:
            return None
        turn = _open_turns[call_id] = cls(messages, is_below=_caller.get() is run)
        if not turn._is_below:
            _turns[run] = turn
        return turn

    def record(self, text: str) -> None:
        """Add text of a model to the partial of the run, unless another agent gets it as the result of a tool."""
        if text and not self._is_below:
            stoppable.append_partial(text)

    @contextlib.contextmanager
    def inside(self, tool_call_id: str) -> Iterator[None]:
        """Let the block be the execution of a tool call."""
        self.begin(tool_call_id)
        token = _caller.set(stoppable.current_run())
        try:
            yield
        finally:
            _caller.reset(token)


_caller: contextvars.ContextVar[Run | None] = contextvars.ContextVar("stoppable-pydantic-ai-caller", default=None)
"""The run in which the tool that runs here was called."""

_open_turns: WeakValueDictionary[str, AgentTurn] = WeakValueDictionary()
"""The turns by the id that Pydantic AI gives to the call of the agent."""

_turns: WeakKeyDictionary[Run, AgentTurn] = WeakKeyDictionary()
"""What the history of a run is made of."""


def history_of(run: Run, default: Iterable[ModelMessage] = ()) -> list[ModelMessage]:
    """Return the messages of a run whose agent has ``Stoppable``, for the ``message_history`` of the next turn.

    If the run was stopped, every tool call is answered: with its result, or with a sentence that says whether it may
    have taken effect. Text that had been streamed is kept. If the run called several agents, the messages are those
    of the last one; if it called none, as after a stop before it began, they are ``default``. The process that
    executed the run keeps them as long as the run.
    """
    if (turn := _turns.get(run)) is None:
        return list(default)
    is_complete = run.outcome is not None and run.outcome.status == Status.COMPLETED
    if is_complete or not run.token.stopped:
        return list(turn.messages)  # calls without an answer are deferred: their results come with the next turn
    return complete(turn.messages, turn)


def complete(messages: Iterable[ModelMessage], turn: Turn) -> list[ModelMessage]:
    """Return the messages with an answer after each tool call, where providers expect it, and the text so far."""
    messages = [message for message in messages if message.parts]  # one without only marks that the turn was cut
    answered_ids = {
        part.tool_call_id
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart)
    }
    completed: list[ModelMessage] = []
    for message in messages:
        completed.append(message)
        if isinstance(message, ModelResponse):
            open_calls = [call for call in message.tool_calls if call.tool_call_id not in answered_ids]
            if open_calls:
                answers = [_answer(call, turn) for call in open_calls]
                completed.append(ModelRequest(parts=answers, run_id=message.run_id, timestamp=answers[0].timestamp))
    # Pydantic AI loses what was streamed if a task of its own was cut first.
    if turn.text and not isinstance(messages[-1], ModelResponse):
        completed.append(ModelResponse(parts=[TextPart(turn.text)], state="interrupted"))
    return completed


_OUTCOMES = str(ToolReturnPart.__dataclass_fields__["outcome"].type)
_NO_RESULT: Any = "interrupted" if "interrupted" in _OUTCOMES else "failed"
"""What newer versions call a tool call that was cut, and others an error."""


def _answer(call: ToolCallPart, turn: Turn) -> ToolReturnPart:
    answer = turn.answer(call.tool_call_id)
    if not answer.is_result:
        return ToolReturnPart(call.tool_name, answer.text, call.tool_call_id, outcome=_NO_RESULT)
    result = answer.result
    content: Any = result.return_value if isinstance(result, ToolReturn) else result
    return ToolReturnPart(call.tool_name, content, call.tool_call_id)
