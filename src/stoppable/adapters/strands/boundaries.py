"""The model calls and tools of an agent as boundaries, by its middleware; outside a run it does nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

from strands.hooks import AfterToolCallEvent, HookOrder, MessageAddedEvent

import stoppable
from stoppable.adapters.strands import names
from stoppable.adapters.strands.streams import read_in_task
from stoppable.adapters.strands.turns import AgentTurn, current, error_result

_Next = Callable[[Any], AsyncGenerator[Any, None]]

_prepared: weakref.WeakSet[Any] = weakref.WeakSet()


def prepare(agent: Any) -> None:
    """Make the model calls and tools of an agent boundaries, once."""
    if agent in _prepared:
        return
    _prepared.add(agent)
    names.add_middleware(agent, names.MODEL_STAGE, _call_model)
    names.add_middleware(agent, names.TOOL_STAGE, _execute_tool)
    agent.add_hook(_note_result, AfterToolCallEvent, order=HookOrder.SDK_LAST)  # other hooks may change the result
    agent.add_hook(_note_message, MessageAddedEvent)


async def _call_model(context: Any, next_fn: _Next) -> AsyncGenerator[Any, None]:
    turn = current.get()
    if turn is not None:
        context = dataclasses.replace(context, model=_Model(context.model, turn))
    async for event in next_fn(context):
        yield event


async def _execute_tool(context: Any, next_fn: _Next) -> AsyncGenerator[Any, None]:
    turn, call = current.get(), context.tool_use
    if turn is None:
        async for event in next_fn(context):
            yield event
        return
    # A stop must not end the task of a tool by an exception: Strands would leave the call without a result, and go on.
    # So the model is told what became of the call; the call of the model raises the stop, when the tools beside
    # this one have ended.
    try:
        async with contextlib.aclosing(
            read_in_task(turn.run, f"tool {call['name']}", lambda: _as_boundary(turn, call, next_fn(context)))
        ) as events:
            async for event in events:
                yield event
    except stoppable.AgentStopped:
        answer = turn.answer(call["toolUseId"])
        yield names.ToolResultEvent(error_result(call["toolUseId"], answer.text))


async def _as_boundary(turn: AgentTurn, call: Any, events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with stoppable.boundary("tool", call["name"]), contextlib.aclosing(events):
        turn.begin(call["toolUseId"])
        async for event in events:
            yield event


def _note_result(event: AfterToolCallEvent) -> None:
    if (turn := current.get()) is not None:
        turn.finish(event.tool_use["toolUseId"], event.result)


def _note_message(event: MessageAddedEvent) -> None:
    turn = current.get()
    if turn is not None and turn.agent is event.agent and event.message["role"] == "assistant":
        turn.clear()  # some providers use the ids of calls again


class _Model:
    """A model whose answer ends between two chunks; everything else is the real one."""

    def __init__(self, model: Any, turn: AgentTurn) -> None:
        self._model = model
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def stream(self, *args: Any, cancel_signal: Any = None, **kwargs: Any) -> AsyncGenerator[Any, None]:
        turn = self._turn
        turn.forget_text()  # of an attempt that failed
        signal = _Signal(cancel_signal)
        config = self._model.get_config()
        pieces = stoppable.stream(
            _pieces(self._model.stream(*args, cancel_signal=signal, **kwargs)),
            finish=config.get("streaming") is False,  # the model answers at once, and Strands makes chunks of it
            name=str(config.get("model_id") or type(self._model).__name__),
        )
        is_complete = False
        try:
            async for piece in pieces:
                is_complete = any("messageStop" in chunk for chunk in piece)
                for chunk in piece:
                    if text := chunk.get("contentBlockDelta", {}).get("delta", {}).get("text"):
                        turn.record(text)
                    yield chunk
        except stoppable.AgentStopped:
            if not is_complete:
                raise
        finally:
            signal.set()
        if not is_complete:  # Strands' own cancellation, which the stop has caused, has ended it
            stoppable.check()


class _Signal(threading.Event):
    """A cancel signal for one model call: providers that read in a thread look at it after the call has ended, too."""

    def __init__(self, outer: threading.Event | None) -> None:
        super().__init__()
        self._outer = outer

    def is_set(self) -> bool:
        return super().is_set() or (self._outer is not None and self._outer.is_set())


async def _pieces(chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[list[Any], None]:
    """Yield the chunks of an answer in groups, each with a piece of content or the end: only those are worth a cut."""
    piece: list[Any] = []
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            piece.append(chunk)
            if "contentBlockDelta" in chunk:
                yield piece
                piece = []
    yield piece
