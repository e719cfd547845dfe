"""Chat models and tools of LangChain as boundaries, entered on the thread that does the work.

Callbacks are not enough: LangChain does not call them for a cancelled call, nor for a stop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool

import stoppable
from stoppable.adapters.langgraph.internal import is_internal_call
from stoppable.adapters.langgraph.threads import UNFINISHED
from stoppable.adapters.langgraph.turn import Unit, here
from stoppable.adapters.langgraph.wrapping import wrap


class StreamCut(Exception):
    """Ends the stream of a model between two chunks; ``agenerate`` fails on anything that is not an ``Exception``."""


def wrap_models_and_tools() -> None:
    """Wrap the classes of LangChain, once."""
    wrap(BaseChatModel, "generate", _generate)
    wrap(BaseChatModel, "agenerate", _agenerate)
    wrap(BaseChatModel, "stream", _stream)
    wrap(BaseChatModel, "astream", _astream)
    wrap(BaseTool, "run", _run)
    wrap(BaseTool, "arun", _arun)


# Models


def _name(model: Any) -> str:
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)


def _is_inner(unit: Unit | None, target: Any) -> bool:
    """Return whether a call is outside a graph that is a run, or part of a call that is in flight already."""
    return unit is None or unit.target is target


def _watch_chunks(model: Any) -> None:
    """Wrap the method that yields the chunks of a model; done at the call, because each provider has its own class."""
    for name, wrapper in (("_stream", _chunks), ("_astream", _achunks)):
        defining = next(each for each in type(model).__mro__ if name in vars(each))
        if defining is not BaseChatModel:
            wrap(defining, name, wrapper)


def _is_internal(model: Any, messages: Any, stop: Any = None, callbacks: Any = None, **kwargs: Any) -> bool:  # noqa: ARG001
    """Return whether a call is internal, by the arguments of ``generate``."""
    return is_internal_call(model, kwargs.get("tags"), kwargs.get("metadata"), callbacks)


def _is_internal_stream(model: Any, input: Any, config: Any = None, **kwargs: Any) -> bool:  # noqa: A002, ARG001
    """Return the same by the arguments of ``stream``."""
    full = ensure_config(config)
    return is_internal_call(model, full.get("tags"), full.get("metadata"), full.get("callbacks"))


def _generate(real: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return real(self, *args, **kwargs)
        _watch_chunks(self)
        with stoppable.boundary("llm", _name(self)), unit.turn.inside(self, unit) as call:
            call.is_internal = _is_internal(self, *args, **kwargs)
            try:
                return real(self, *args, **kwargs)
            except StreamCut:
                stoppable.check()
                raise

    return generate


def _agenerate(real: Callable[..., Any]) -> Callable[..., Any]:
    async def agenerate(self: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return await real(self, *args, **kwargs)
        _watch_chunks(self)
        await unit.turn.check(unit)
        with stoppable.boundary("llm", _name(self)), unit.turn.inside(self, unit) as call:
            call.is_internal = _is_internal(self, *args, **kwargs)
            try:
                return await real(self, *args, **kwargs)
            except StreamCut:
                stoppable.check()
                raise

    return agenerate


def _stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return real(self, *args, **kwargs)  # type: ignore[no-any-return]
        _watch_chunks(self)
        begin = functools.partial(real, self, *args, **kwargs)
        return _streamed(unit, self, begin, is_internal=_is_internal_stream(self, *args, **kwargs))

    return stream


def _streamed(unit: Unit, model: Any, begin: Callable[[], Any], *, is_internal: bool) -> Iterator[Any]:
    call = unit.turn.begin(model, unit)
    call.is_internal = is_internal
    try:
        with stoppable.boundary("llm", _name(model)), contextlib.closing(begin()) as chunks:
            while (chunk := call.step(functools.partial(next, chunks, None))) is not None:
                with unit.turn.suspended(call):
                    yield chunk
    except StreamCut:
        stoppable.check()
        raise
    finally:
        unit.turn.end(call)


def _astream(real: Callable[..., Any]) -> Callable[..., Any]:
    def astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return real(self, *args, **kwargs)  # type: ignore[no-any-return]
        _watch_chunks(self)
        begin = functools.partial(real, self, *args, **kwargs)
        return _astreamed(unit, self, begin, is_internal=_is_internal_stream(self, *args, **kwargs))

    return astream


async def _astreamed(unit: Unit, model: Any, begin: Callable[[], Any], *, is_internal: bool) -> AsyncIterator[Any]:
    await unit.turn.check(unit)
    call = unit.turn.begin(model, unit)
    call.is_internal = is_internal
    try:
        with stoppable.boundary("llm", _name(model)):
            async with contextlib.aclosing(begin()) as chunks:
                while (chunk := await call.astep(functools.partial(anext, chunks, None))) is not None:
                    with unit.turn.suspended(call):
                        yield chunk
    except StreamCut:
        stoppable.check()
        raise
    finally:
        unit.turn.end(call)


# What a model streams, also where LangGraph streams a model that was only called


def _chunks(real: Callable[..., Any]) -> Callable[..., Any]:
    def _stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        unit = here()
        if unit is None or unit.streaming:
            yield from real(self, *args, **kwargs)
            return
        unit.streaming = True  # a class that calls the method of its base
        for chunk in real(self, *args, **kwargs):
            try:
                yield chunk
            finally:
                unit.say(chunk.message)  # which has its id only now
            if stoppable.should_stop():
                raise StreamCut
        unit.finish()

    return _stream


def _achunks(real: Callable[..., Any]) -> Callable[..., Any]:
    async def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        unit = here()
        is_watched = unit is not None and not unit.streaming
        if unit is not None:
            unit.streaming = True
        async with contextlib.aclosing(real(self, *args, **kwargs)) as chunks:
            async for chunk in chunks:
                try:
                    yield chunk
                finally:
                    if unit is not None and is_watched:
                        unit.say(chunk.message)
                if is_watched and stoppable.should_stop():
                    raise StreamCut
        if unit is not None and is_watched:
            unit.finish()

    return _astream


# Tools


def _run(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return real(self, *args, **kwargs)
        calls, call_id = unit.thread, kwargs.get("tool_call_id")
        with stoppable.boundary("tool", self.name), unit.turn.inside(self, unit) as inner:
            inner.is_internal = True
            calls.note(call_id, UNFINISHED)
            result = real(self, *args, **kwargs)
            calls.note(call_id, result)
            return result

    return run


def _arun(real: Callable[..., Any]) -> Callable[..., Any]:
    async def arun(self: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_inner(unit, self):
            return await real(self, *args, **kwargs)
        calls, call_id = unit.thread, kwargs.get("tool_call_id")
        await unit.turn.check(unit)
        with stoppable.boundary("tool", self.name), unit.turn.inside(self, unit) as inner:
            inner.is_internal = True
            calls.note(call_id, UNFINISHED)
            result = await real(self, *args, **kwargs)
            calls.note(call_id, result)
            return result

    return arun
