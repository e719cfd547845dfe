"""The capability of an agent whose model calls and tools are boundaries of the run that calls it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

import stoppable
from stoppable.adapters._upstream import is_wrapped, mark, require
from stoppable.adapters.pydantic_ai.histories import AgentTurn
from stoppable.adapters.pydantic_ai.names import missing, wrap_events
from stoppable.adapters.turn import NO_EFFECT

_ASKS_FOR_WRAPPERS = hasattr(AbstractCapability, "get_wrapper_model")
"""Whether this version of Pydantic AI asks for the wrapper of each model, also of one that it falls back to."""


@dataclasses.dataclass
class Stoppable(AbstractCapability[Any]):
    """Makes the model calls and tools of an agent boundaries: ``Agent(…, capabilities=[Stoppable()])``.

    A stop of the run that calls the agent takes effect there, as with ``stoppable.spawn(agent.run, …)``. Threads and
    processes that tools start belong to the run, as with ``stoppable.instrument()``. Outside a run it does nothing.
    """

    def __post_init__(self) -> None:
        require("pydantic-ai-slim", missing())
        stoppable.instrument()

    async def for_run(self, ctx: Any) -> AbstractCapability[Any]:
        """Return the capability of one call of the agent."""
        run = stoppable.current_run()
        turn = None if run is None else AgentTurn.open(run, ctx.run_id, ctx.messages)
        return self if turn is None else _InRun(turn)


@dataclasses.dataclass
class _InRun(AbstractCapability[Any]):
    """The capability during one call of an agent in a run."""

    turn: AgentTurn

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Note the list of messages, which is a new one since the call began."""
        self.turn.messages = ctx.messages
        self.turn.forget_text()  # of an attempt that failed
        if _ASKS_FOR_WRAPPERS:
            return request_context
        return dataclasses.replace(request_context, model=self.get_wrapper_model(request_context.model))

    def get_wrapper_model(self, model: Model) -> Model:
        """Return a model whose calls are boundaries."""
        return model if isinstance(model, _StoppableModel) else _StoppableModel(model, self.turn)

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:  # noqa: ARG002
        """Make a tool call a boundary, and note what becomes of it."""
        call_id = call.tool_call_id
        self.turn.messages = ctx.messages
        async with stoppable.boundary("tool", call.tool_name):
            with self.turn.inside(call_id):
                try:
                    result = await handler(args)
                except ApprovalRequired:
                    self.turn.finish(call_id, NO_EFFECT)  # after a stop nobody is asked any more
                    raise
                self.turn.finish(call_id, result)
        return result


class _StoppableModel(WrapperModel):
    """A model whose calls are boundaries, and whose streams end between two events."""

    def __init__(self, wrapped: Model, turn: AgentTurn) -> None:
        super().__init__(wrapped)
        self._turn = turn

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        async with stoppable.boundary("llm", self.model_name):
            response = await super().request(*args, **kwargs)
        self._turn.record("".join(part.content for part in response.parts if isinstance(part, TextPart)))
        return response

    @contextlib.asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
        async with contextlib.AsyncExitStack() as stack:
            async with stoppable.boundary("llm", self.model_name):  # until the response begins
                response = await stack.enter_async_context(super().request_stream(*args, **kwargs))
            wrap_events(response, self._watch)
            yield response

    async def _watch(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any]:
        chunks = stoppable.stream(events, name=self.model_name)
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]
            async for event in chunks:
                text = _text_of(event)
                self._turn.say(text)
                self._turn.record(text)
                yield event
        self._turn.forget_text()  # it is a whole response, which is in the messages


def _text_of(event: Any) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return str(text)
    return ""


def instrument() -> None:
    """Give ``Stoppable`` to every agent that is called inside a run; patches ``Agent.iter`` once per process.

    Outside a run agents work as before.
    """
    stoppable.instrument()
    plain = Agent.iter  # every way to call an agent ends there
    if is_wrapped(plain):
        return

    def iter(self: Any, *args: Any, capabilities: Any = None, **kwargs: Any) -> Any:  # noqa: A001 - its name there
        if stoppable.current_run() is not None:
            capabilities = [*(capabilities or ()), Stoppable()]
        return plain(self, *args, capabilities=capabilities, **kwargs)

    Agent.iter = mark(iter, plain)
