"""The middleware of an agent whose model calls and tools are boundaries of the run that calls it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from agent_framework import (
    AgentContext,
    AgentMiddleware,
    ChatContext,
    ChatMiddleware,
    FunctionInvocationContext,
    FunctionMiddleware,
    ResponseStream,
)

import stoppable
from stoppable.adapters.agent_framework.turns import AgentTurn

_Next = Callable[[], Awaitable[None]]


class Stoppable(AgentMiddleware):
    """Makes the model calls and tools of an agent boundaries: ``Agent(…, middleware=[Stoppable()])``.

    A stop of the run that calls the agent takes effect there. The history of the session then has what the agent did,
    with an answer to every tool call. Threads and processes that tools start belong to the run, as with
    ``stoppable.instrument()``. Outside a run it does nothing.
    """

    def __init__(self) -> None:
        stoppable.instrument()

    async def process(self, context: AgentContext, call_next: _Next) -> None:
        """Call the agent."""
        run = stoppable.current_run()
        if run is None:
            await call_next()
            return
        turn = AgentTurn(context, run)
        others = context.client_kwargs.get("middleware", ())
        context.client_kwargs["middleware"] = [_Models(turn), _Tools(turn), *others]
        try:
            with turn.watch():
                await call_next()
        finally:
            await turn.complete()
        if isinstance(context.result, ResponseStream):  # it begins when somebody reads it
            context.result.with_pull_context_manager(turn.watch)
            context.stream_cleanup_hooks.append(turn.complete)


class _Models(ChatMiddleware):
    """Makes each call of a model a boundary, and ends its stream between two updates."""

    def __init__(self, turn: AgentTurn) -> None:
        self._turn = turn

    async def process(self, context: ChatContext, call_next: _Next) -> None:
        name = str((context.options or {}).get("model") or getattr(context.client, "model", None) or "model")
        self._turn.begin_model_call(context.messages)
        async with stoppable.boundary("llm", name):
            await call_next()
        result: Any = context.result
        if isinstance(result, ResponseStream):
            context.result = ResponseStream(self._watch(result, name), finalizer=lambda _: self._finish(result))
        elif result is not None:
            self._turn.record(result.text)
            self._turn.end_model_call(result.messages)

    async def _watch(self, updates: Any, name: str) -> AsyncGenerator[Any]:
        chunks = stoppable.stream(updates, name=name)
        async with contextlib.aclosing(chunks):
            async for update in chunks:
                self._turn.say(update.text)
                self._turn.record(update.text)
                yield update

    async def _finish(self, updates: Any) -> Any:
        response = await updates.get_final_response()
        self._turn.end_model_call(response.messages)
        return response


class _Tools(FunctionMiddleware):
    """Makes each tool call a boundary, and notes what becomes of it."""

    def __init__(self, turn: AgentTurn) -> None:
        self._turn = turn

    async def process(self, context: FunctionInvocationContext, call_next: _Next) -> None:
        call_id = str(context.metadata["call_id"])
        async with stoppable.boundary("tool", context.function.name):
            with self._turn.inside(call_id):
                await call_next()
                self._turn.finish(call_id, context.result)
