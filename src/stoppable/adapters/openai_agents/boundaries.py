"""Model calls and tool calls of openai-agents as boundaries."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from agents import Model

import stoppable
from stoppable.adapters.openai_agents.turns import current

_NOTED = "__stoppable_noted__"


def guard_models() -> None:
    """Make the calls of every class of models that there is boundaries, unless they are."""
    for kind in _classes_below(Model):
        if "get_response" in vars(kind):
            stoppable.guard(kind, "llm", "get_response", name=_name_of)
        if "stream_response" in vars(kind):
            _replace(kind, "stream_response", _as_boundary)


def guard_tool(tool: Any) -> None:
    """Guard a function tool, or an agent that is one; the tools that the provider executes have no function here."""
    if hasattr(tool, "on_invoke_tool"):
        _replace(tool, "on_invoke_tool", _noting_call)
        stoppable.guard(tool, "tool", "on_invoke_tool", name=str(tool.name))


def _classes_below(kind: type[Any]) -> Iterator[type[Any]]:
    for below in kind.__subclasses__():
        yield below
        yield from _classes_below(below)


def _name_of(model: Any) -> str:
    return str(getattr(model, "model", None) or type(model).__name__)


def _replace(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method, unless that was done before; a guard that is around it by now has the mark too."""
    plain = vars(owner)[name]
    if not hasattr(plain, _NOTED):
        replacement = functools.update_wrapper(wrapper(plain), plain)
        setattr(replacement, _NOTED, True)
        setattr(owner, name, replacement)


def _as_boundary(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Make a stream of events a boundary that ends between two of them, and note its text.

    It is not guarded: the SDK cancels the task that reads the stream when its own reader is cancelled. A guard would
    have cancelled it before, and the second cancel would break the clean-up that closes the connection.
    """

    async def stream_response(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await _check()
        turn, entered = current.get(), stoppable.enter("llm", _name_of(self))
        try:
            async with contextlib.aclosing(plain(self, *args, **kwargs)) as events:
                async for event in events:
                    if turn is not None and event.type == "response.output_text.delta":
                        turn.say(event.delta)
                        stoppable.append_partial(event.delta)
                    yield event
                    await _check()
        except BaseException as error:
            entered.leave(error)
            raise
        entered.leave()

    return stream_response


async def _check() -> None:
    """Raise the stop of the run if there is one, once no other branch of it is in a call."""
    if stoppable.should_stop():
        await stoppable.drained()
        stoppable.check()


def _noting_call(plain: Callable[..., Any]) -> Callable[..., Any]:
    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        turn, call_id = current.get(), getattr(context, "tool_call_id", None)
        if turn is None or call_id is None:
            return await plain(context, arguments)
        turn.begin(call_id)
        result = await plain(context, arguments)
        turn.finish(call_id, result)
        return result

    return on_invoke_tool
