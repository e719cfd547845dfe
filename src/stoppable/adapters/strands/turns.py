"""What one invocation of an agent has done, and how the rest of it gets into the agent's messages after a stop."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

from strands.hooks import MessageAddedEvent

import stoppable
from stoppable import Run
from stoppable.adapters.strands import names
from stoppable.adapters.turn import Turn


class AgentTurn(Turn):
    """One invocation of an agent inside a run.

    Strands adds the results of tools to the agent's messages when all tools of a step have ended, and what a model says
    when it has said everything. After a stop, ``seal_messages`` adds what there is.
    """

    def __init__(self, agent: Any, run: Run) -> None:
        super().__init__()
        self.agent = agent
        self.run = run
        outer = current.get()
        self._is_below = outer is not None and outer.run is run
        self.cancel_signal: threading.Event = threading.Event()
        """Strands' own cancellation of this invocation; it also ends what waits in threads and in MCP servers."""

    def record(self, text: str) -> None:
        """Note a piece of a model's answer: it is part of the partial, unless it is for another agent."""
        self.say(text)
        if not self._is_below:
            stoppable.append_partial(text)

    async def seal_messages(self) -> None:
        """Complete the messages of the agent if the run was stopped."""
        await self.seal(self._write)

    async def _write(self) -> None:
        messages = self.agent.messages
        blocks = messages[-1]["content"] if messages else []
        calls = [block["toolUse"]["toolUseId"] for block in blocks if "toolUse" in block]
        if calls:
            await self._add("user", [{"toolResult": self._result(call_id)} for call_id in calls])
            names.end_interrupts(self.agent)
        if text := self.text:
            await self._add("assistant", [{"text": text}])

    def _result(self, call_id: str) -> Any:
        answer = self.answer(call_id)
        return answer.result if answer.is_result else error_result(call_id, answer.text)

    async def _add(self, role: str, content: list[Any]) -> None:
        message: Any = {"role": role, "content": content}
        self.agent.messages.append(message)
        # a session manager saves it
        await self.agent.hooks.invoke_callbacks_async(MessageAddedEvent(agent=self.agent, message=message))


def error_result(call_id: str, text: str) -> dict[str, Any]:
    """Return the result of a tool call that has no result of its own."""
    return {"toolUseId": call_id, "status": "error", "content": [{"text": text}]}


current: contextvars.ContextVar[AgentTurn | None] = contextvars.ContextVar("stoppable-strands", default=None)
"""The invocation of an agent that the calling code is part of."""
