"""The thread of a graph during one call: where it is stored, and what is not in it yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.types import Command

from stoppable.adapters.langgraph import names


class _Unfinished:
    def __repr__(self) -> str:
        return "<unfinished>"


UNFINISHED: Any = _Unfinished()
"""A tool call that has begun, and whose result is unknown."""


@dataclass(slots=True)
class Thread:
    """What has to be written to a thread after a stop."""

    graph: Any
    config: dict[str, Any] | None
    """Its configuration; None if nothing is stored, or not by this graph."""
    began_at: str | None = None
    """The checkpoint that the call began with; None if there was none."""
    had_interrupts: bool = False
    calls: dict[str, Any] = field(default_factory=dict)
    """The answers of the tool calls that have begun, by id; UNFINISHED if there is none."""
    said: dict[str, str] = field(default_factory=dict)
    """Text that was streamed in nodes that never returned, by the id of the message."""
    below: list[Thread] = field(default_factory=list)
    """The threads of persistent subgraphs that the call came to."""

    def all_below(self) -> list[Thread]:
        """Return those, and the ones below them."""
        return [found for one in self.below for found in [one, *one.all_below()]]

    def note(self, call_id: str | None, result: Any) -> None:
        """Record the answer of a tool call."""
        if call_id is None:
            return
        found = _messages_of(result) if isinstance(result, Command) else [result]
        answers = [one for one in found if isinstance(one, ToolMessage) and one.tool_call_id == call_id]
        self.calls[call_id] = answers[0] if answers else UNFINISHED


def _messages_of(command: Command[Any]) -> list[Any]:
    update = command.update
    values = update.values() if isinstance(update, dict) else [update]
    return [message for value in values if isinstance(value, list) for message in value]


def thread_of(graph: Any, config: Any) -> Thread:
    """Return the thread of a graph call, or None if it shares the thread of its caller."""
    full = ensure_config(merge_configs(graph.config, config) if graph.config else config)
    given = full.get("configurable", {})
    is_kept = bool(given.get(names.CHECKPOINTER) or graph.checkpointer)
    is_own = graph.checkpointer is True or names.TASK_ID not in given
    if graph.checkpointer is False or not is_kept or not is_own or "thread_id" not in given:
        return Thread(graph, None)
    addressed = names.persistent_config if graph.checkpointer is True else names.thread_config
    return Thread(graph, addressed(full))
