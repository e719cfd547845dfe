"""One call of a runner: what the model asked for, which tools have begun and returned, and the end of its session."""

from __future__ import annotations

import contextvars
from typing import Any

from stoppable.adapters.turn import Turn

current: contextvars.ContextVar[AgentTurn | None] = contextvars.ContextVar("stoppable-openai-agents", default=None)
"""The call of a runner that the calling code is in."""


class AgentTurn(Turn):
    """What a call of a runner has done and the SDK has not saved."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self._session = session
        self._items: list[Any] = []
        """Of the model's last answer."""

    def begin_answer(self) -> None:
        """Note that a model is asked; what came before is saved by then."""
        self.clear()
        self._items = []

    def end_answer(self, items: list[Any]) -> None:
        """Note what the model has answered."""
        self.forget_text()
        self._items = items
        self.request(*_calls_in(items))

    async def seal_session(self) -> None:
        """Complete the session of a turn that was stopped."""
        if self._session is not None:
            await self.seal(self._write)

    async def _write(self) -> None:
        """Save the last answer, unless the SDK has, an answer to each call that has none, and the text so far."""
        saved = await self._session.get_items()
        items = [] if any(_is_in(item, saved) for item in self._items) else list(self._items)
        calls = dict.fromkeys([*_calls_in([*saved, *items])])
        answered_ids = {item["call_id"] for item in saved if item.get("type") == _OUTPUT}
        items += [self._output(call_id) for call_id in calls if call_id not in answered_ids]
        if self.text:
            items.append({"role": "assistant", "content": self.text})
        if items:
            await self._session.add_items(items)

    def _output(self, call_id: str) -> dict[str, Any]:
        return {"type": _OUTPUT, "call_id": call_id, "output": self.answer(call_id).text}


_OUTPUT = "function_call_output"


def _calls_in(items: list[Any]) -> list[str]:
    return [item["call_id"] for item in items if item.get("type") == "function_call"]


def _is_in(item: Any, saved: list[Any]) -> bool:
    """Return whether a session has an item; it may have dropped its id."""
    if "call_id" in item:
        return any(each.get("call_id") == item["call_id"] for each in saved)
    content = item.get("content")
    return content is not None and any(each.get("content") == content for each in saved)
