"""What one call of an agent has done, and how the rest of it gets into the history of its session."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence

from agent_framework import AgentContext, Content, HistoryProvider, Message

import stoppable
from stoppable import Run
from stoppable.adapters.turn import Turn

_caller: contextvars.ContextVar[Run | None] = contextvars.ContextVar("stoppable-agent-framework-caller", default=None)
"""The run in which the tool that runs here was called."""


class AgentTurn(Turn):
    """One call of an agent inside a run.

    Agent Framework saves the messages of a call when it is complete. After a stop, ``complete`` saves them instead.
    """

    def __init__(self, context: AgentContext, run: Run) -> None:
        super().__init__()
        self._context = context
        self._is_below = _caller.get() is run
        self._outputs: list[Message] = []
        self._open_calls: list[str] = []
        self._has_raised = False

    def record(self, text: str) -> None:
        """Add text of a model to the partial of the run, unless another agent gets it as the result of a tool."""
        if text and not self._is_below:
            stoppable.append_partial(text)

    # Models

    def begin_model_call(self, messages: Sequence[Message]) -> None:
        """Note the results of tools that a model now gets to read."""
        call_ids = set(self._open_calls)
        self._outputs += [message for message in messages if call_ids.intersection(_call_ids(message, _RESULT))]
        self._open_calls = []
        self.forget_text()  # of an attempt that failed

    def end_model_call(self, messages: Sequence[Message]) -> None:
        """Note what a model has answered."""
        self._outputs += messages
        self._open_calls = [call_id for message in messages for call_id in _call_ids(message, _CALL)]
        self.forget_text()

    # Tools

    @contextlib.contextmanager
    def inside(self, call_id: str) -> Iterator[None]:
        """Let the block be the execution of a tool call."""
        self.begin(call_id)
        token = _caller.set(stoppable.current_run())
        try:
            yield
        finally:
            _caller.reset(token)

    # The end

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Note whether the block, in which a part of the call is executed, is cut."""
        try:
            yield
        except StopAsyncIteration:
            raise
        except BaseException:
            self._has_raised = True
            raise

    async def complete(self) -> None:
        """Save the messages of a call that a stop has cut, in the history of its session."""
        if self._has_raised:
            await self.seal(self._save)

    async def _save(self) -> None:
        session, agent = self._context.session, self._context.agent
        if session is None or session.service_session_id is not None:
            return  # nobody, or the service, keeps the history
        for provider in agent.context_providers:
            if isinstance(provider, HistoryProvider):
                inputs = self._context.messages if provider.store_inputs else []
                outputs = self._all_outputs() if provider.store_outputs else []
                state = session.state.setdefault(provider.source_id, {})
                await provider.save_messages(session.session_id, [*inputs, *outputs], state=state)

    def _all_outputs(self) -> list[Message]:
        """Return what models and tools have said, with an answer to each tool call, and the text so far."""
        outputs = list(self._outputs)
        if self._open_calls:
            outputs.append(Message("tool", [self._answer(call_id) for call_id in self._open_calls]))
        if self.text:
            outputs.append(Message("assistant", [Content.from_text(self.text)]))
        return outputs

    def _answer(self, call_id: str) -> Content:
        answer = self.answer(call_id)
        return Content.from_function_result(call_id, result=answer.result if answer.is_result else answer.text)


_CALL, _RESULT = "function_call", "function_result"


def _call_ids(message: Message, kind: str) -> list[str]:
    return [str(content.call_id) for content in message.contents if content.type == kind]
