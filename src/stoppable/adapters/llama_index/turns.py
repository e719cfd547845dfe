"""What one call of an agent or workflow has done, and how it gets into the agent's memory after a stop."""

from __future__ import annotations

import contextvars
from typing import Any

from llama_index.core.agent.react.types import ObservationReasoningStep
from llama_index.core.agent.workflow import CodeActAgent, ReActAgent
from llama_index.core.llms import ChatMessage

from stoppable.adapters._whole_calls import settle
from stoppable.adapters.turn import CallAnswer, Turn


class WorkflowTurn:
    """One call of an agent or workflow: agents keep what it does for themselves until they have an answer."""

    def __init__(self) -> None:
        self.calls: Turn = Turn()
        self.agent: Any = None
        """The agent that took the last step."""
        self.ctx: Any = None
        """The context of that step, whose store all steps share."""
        self.is_asking = False
        """Whether its model is being called."""

    async def seal(self) -> None:
        """Move what was done to the agent's memory if the run was stopped, with an answer to each tool call."""
        if self.agent is None:
            return

        async def write() -> None:
            if messages := await self._unsaved():
                memory = await self.ctx.store.get("memory")
                await settle(getattr(memory, "sql_store", None))
                await memory.aput_messages(messages)

        await self.calls.seal(write)

    async def _unsaved(self) -> list[ChatMessage]:
        if isinstance(self.agent, ReActAgent):
            return await self._reasoning()
        key = getattr(self.agent, "scratchpad_key", None)  # an agent of another kind may have none
        messages: list[ChatMessage] = list(await self.ctx.store.get(key, default=[])) if key else []
        answered = [message.additional_kwargs.get("tool_call_id") for message in messages if message.role == "tool"]
        messages += [self._answer(answer) for answer in self.calls.answers(answered)]
        if text := self.calls.text:
            messages.append(ChatMessage(role="assistant", content=text))
        if key:
            await self.ctx.store.set(key, [])
        return messages

    def _answer(self, answer: CallAnswer) -> ChatMessage:
        if isinstance(self.agent, CodeActAgent):  # it tells the model of code as the user does
            return ChatMessage(role="user", content=f"Result of executing the code given:\n\n{answer.text}")
        return ChatMessage(role="tool", content=answer.text, additional_kwargs={"tool_call_id": answer.call_id})

    async def _reasoning(self) -> list[ChatMessage]:
        """Return the steps of an agent that talks to its model in text, as one message, which is how it saves them."""
        key = self.agent.reasoning_key
        steps = list(await self.ctx.store.get(key, default=[]))
        steps += [ObservationReasoningStep(observation=answer.text) for answer in self.calls.answers()]
        text = "\n".join([*(step.get_content() for step in steps), *filter(None, [self.calls.text])])
        await self.ctx.store.set(key, [])
        return [ChatMessage(role="assistant", content=text)] if text else []


current: contextvars.ContextVar[WorkflowTurn | None] = contextvars.ContextVar("stoppable-llama-index", default=None)
"""The turn of the workflow whose step is executed: LlamaIndex starts steps in the context of the call."""
