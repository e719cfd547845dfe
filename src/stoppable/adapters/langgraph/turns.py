"""One call of a graph: how it was started, the thread it works on, what is under way, and what its models have said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import ensure_config, merge_configs
from langgraph.types import Command

from stoppable import InvalidArgument, Policy
from stoppable.adapters._shared import CurrentSpan, Span, TurnProgress
from stoppable.adapters.langgraph import names
from stoppable.adapters.turn import Turn
from stoppable.supervisor import Supervisor

OnStop = Literal["seal", "rollback", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSettings:
    """The arguments of ``stoppable_graph``."""

    supervisor: Supervisor | None = None
    on_stop: OnStop = "seal"
    seal_seconds: float = 5.0
    name: str | None = None
    owner: str | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.on_stop not in {"seal", "rollback", "leave"}:
            raise InvalidArgument(f"unknown on_stop {self.on_stop!r}: use seal, rollback or leave")

    def for_subgraph(self) -> GraphSettings:
        """Return the settings for graphs that are called in this one; their runs have their own names."""
        return GraphSettings(on_stop=self.on_stop, seal_seconds=self.seal_seconds)


DEFAULT = GraphSettings()

ATTRIBUTE = "__stoppable_settings__"


def settings_of(graph: Any) -> GraphSettings | None:
    """Return the settings of a graph. They are kept on its class, because a graph copies its own attributes."""
    settings: GraphSettings | None = getattr(type(graph), ATTRIBUTE, None)
    return settings


def key_of(thread_id: object) -> str:
    """Return the address of a thread's runs, for ``supervisor.stop(key=…)`` and ``supervisor.find``."""
    return f"langgraph:{quote(str(thread_id), safe='')}"


@dataclass(slots=True)
class Thread:
    """What has to be written to a thread after a stop."""

    graph: Any
    config: dict[str, Any] | None
    """Its configuration; None if nothing is stored, or not by this graph."""
    began_at: str | None = None
    """The checkpoint that the call began with; None if there was none."""
    had_interrupts: bool = False
    unsaved: Turn = field(default_factory=Turn)
    """The tool calls that have begun; the result of one is the message that answers it."""
    unsaved_text: dict[str, str] = field(default_factory=dict)
    """Text that was streamed in nodes that never returned, by the id of the message."""
    below: list[Thread] = field(default_factory=list)
    """The threads of persistent subgraphs that the call came to."""

    def all_below(self) -> list[Thread]:
        """Return those, and the ones below them."""
        return [thread for one in self.below for thread in [one, *one.all_below()]]

    def begin_call(self, call_id: str | None) -> None:
        """Note that a tool call begins."""
        if call_id is not None:
            self.unsaved.begin(call_id)

    def end_call(self, call_id: str | None, result: Any) -> None:
        """Note the answer of a tool call, if its result has one."""
        messages = _messages_of(result) if isinstance(result, Command) else [result]
        for message in messages:
            if call_id is not None and isinstance(message, ToolMessage) and message.tool_call_id == call_id:
                self.unsaved.finish(call_id, message)
                return


def _messages_of(command: Command[Any]) -> list[Any]:
    update = command.update
    values = update.values() if isinstance(update, dict) else [update]
    return [message for value in values if isinstance(value, list) for message in value]


def thread_of(graph: Any, config: Any) -> Thread:
    """Return the thread of a graph call, or None if it shares the thread of its caller."""
    full = ensure_config(merge_configs(graph.config, config) if graph.config else config)
    configurable = full.get("configurable", {})
    is_kept = bool(configurable.get(names.CHECKPOINTER) or graph.checkpointer)
    is_own = graph.checkpointer is True or names.TASK_ID not in configurable
    if graph.checkpointer is False or not is_kept or not is_own or "thread_id" not in configurable:
        return Thread(graph, None)
    addressed = names.persistent_config if graph.checkpointer is True else names.thread_config
    return Thread(graph, addressed(full))


class GraphSpan(Span):
    """A graph, a node, a model call or a tool call that has begun and not ended."""

    __slots__ = (
        "complete_ids",
        "is_internal",
        "is_node",
        "message_id",
        "streamed_text",
        "streaming",
        "target",
        "thread",
        "turn",
    )

    def __init__(self, turn: GraphTurn, thread: Thread, target: Any, outer: GraphSpan | None) -> None:
        super().__init__(outer)
        self.turn: GraphTurn = turn
        self.thread: Thread = thread
        """The part of the thread that its messages belong to."""
        self.target: Any = target
        self.streaming: bool = False
        self.is_node: bool = False
        self.is_internal: bool = False
        """Whether what models say in it is no answer."""
        self.streamed_text: dict[str, str] = {}
        """The text that models streamed in a node, by the id of the message, until the node has returned it."""
        self.complete_ids: set[str] = set()
        """The ids of those messages that are complete."""
        self.message_id: str | None = None
        """The message that a model streams."""

    def say(self, message: Any) -> None:
        """Remember a piece of text that a model streams, with the node that it does so in, unless it is internal."""
        text = str(message.text)
        if text and self.turn.on_text is not None and not any(one.is_internal for one in self.chain()):
            self.turn.on_text(text)
        # A tool hides what is said below it from its own thread; a subgraph with another thread has its own answers.
        if any(one.is_internal for one in self.chain() if one.thread is self.thread):
            return
        node, message_id = self._node(), str(message.id or f"stopped-{id(self)}")
        self.message_id = message_id
        if message_id not in node.streamed_text:  # what was complete before it, as of a guard, was no answer
            node.streamed_text = {
                each: words for each, words in node.streamed_text.items() if each not in node.complete_ids
            }
        node.streamed_text[message_id] = node.streamed_text.get(message_id, "") + text

    def finish(self) -> None:
        """Note that the message is complete; it may still be the answer that the node returns."""
        if self.message_id is not None:
            self._node().complete_ids.add(self.message_id)

    def _node(self) -> GraphSpan:
        return next((one for one in self.chain() if one.is_node), self)

    def step(self, advance: Callable[[], Any]) -> Any:
        """Take one step of a generator inside the span, which its reader is not in."""
        with current.use(self):
            return advance()

    async def astep(self, advance: Callable[[], Awaitable[Any]]) -> Any:
        """Take one step of an async generator inside the span."""
        with current.use(self):
            return await advance()


current: CurrentSpan[GraphSpan] = CurrentSpan("stoppable-langgraph")


class GraphTurn(TurnProgress[GraphSpan]):
    """One call of a graph, with the graphs that are called in it."""

    def __init__(self, settings: GraphSettings, on_text: Callable[[str], object] | None = None) -> None:
        super().__init__(current)
        self.settings = settings
        self.on_text = on_text
        """Called with the text that models stream."""

    def span(self, target: Any, outer: GraphSpan) -> GraphSpan:
        """Return a new span below another one, in its thread."""
        return GraphSpan(self, outer.thread, target, outer)
