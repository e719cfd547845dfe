"""Chat models, tools, nodes and tasks as boundaries, entered on the thread or in the task that does the work.

Callbacks are not enough: LangChain does not call them for a cancelled call, nor for a stop.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langgraph.constants import TAG_NOSTREAM
from langgraph.prebuilt import ToolNode

import stoppable
from stoppable.adapters._upstream import wrap
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.turns import GraphSpan, current

_HOOKS = (
    ".before_agent",
    ".before_model",
    ".after_model",
    ".after_agent",
)  # nodes that create_agent makes of middleware
_MARKS = {"lc_source", "lc_internal_call"}  # in the metadata of a call that middleware makes


def is_internal_node(name: str) -> bool:
    """Return whether a node is middleware, which changes a turn and does not answer."""
    return name.endswith(_HOOKS)


def is_internal_call(model: Any, tags: Any, metadata: Any, callbacks: Any) -> bool:
    """Return whether a call of a model is marked: by middleware, or with the tag that keeps it out of streams."""
    all_tags = {*(tags or ()), *(model.tags or ()), *getattr(callbacks, "tags", ())}
    marks = {*(metadata or ()), *(model.metadata or ()), *getattr(callbacks, "metadata", ())}
    return TAG_NOSTREAM in all_tags or not marks.isdisjoint(_MARKS)


def is_answer(graph: Any, message: Any, metadata: dict[str, Any]) -> bool:
    """Return whether an item of the stream mode ``messages`` is text of an answer."""
    if not isinstance(message, AIMessage) or not message.text or not _MARKS.isdisjoint(metadata):
        return False
    name = str(metadata.get("langgraph_node", ""))
    node = graph.nodes.get(name)
    return not is_internal_node(name) and not isinstance(getattr(node, "bound", None), ToolNode)


class StreamCut(Exception):
    """Ends the stream of a model between two chunks; ``agenerate`` fails on anything that is not an ``Exception``."""


def wrap_models_and_tools() -> None:
    """Wrap the classes of LangChain, once."""
    wrap(BaseChatModel, "generate", _generate)
    wrap(BaseChatModel, "agenerate", _agenerate)
    wrap(BaseChatModel, "stream", _stream)
    wrap(BaseChatModel, "astream", _astream)
    wrap(BaseTool, "run", _run_tool)
    wrap(BaseTool, "arun", _arun_tool)


# Models


def _name(model: Any) -> str:
    return str(getattr(model, "model_name", None) or getattr(model, "model", None) or type(model).__name__)


def _is_inner(span: GraphSpan | None, target: Any) -> bool:
    """Return whether a call is outside a graph that is a run, or part of a call that is in flight already."""
    return span is None or span.target is target


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
        span = current.get()
        if span is None or _is_inner(span, self):
            return real(self, *args, **kwargs)
        _watch_chunks(self)
        with stoppable.boundary("llm", _name(self)), span.turn.inside(span.turn.span(self, span)) as call:
            call.is_internal = _is_internal(self, *args, **kwargs)
            try:
                return real(self, *args, **kwargs)
            except StreamCut:
                stoppable.check()
                raise

    return generate


def _agenerate(real: Callable[..., Any]) -> Callable[..., Any]:
    async def agenerate(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is None or _is_inner(span, self):
            return await real(self, *args, **kwargs)
        _watch_chunks(self)
        await span.turn.check(span)
        with stoppable.boundary("llm", _name(self)), span.turn.inside(span.turn.span(self, span)) as call:
            call.is_internal = _is_internal(self, *args, **kwargs)
            try:
                return await real(self, *args, **kwargs)
            except StreamCut:
                stoppable.check()
                raise

    return agenerate


def _stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        span = current.get()
        if span is None or _is_inner(span, self):
            return real(self, *args, **kwargs)  # type: ignore[no-any-return]
        _watch_chunks(self)
        begin = functools.partial(real, self, *args, **kwargs)
        return _stream_chunks(span, self, begin, is_internal=_is_internal_stream(self, *args, **kwargs))

    return stream


def _stream_chunks(span: GraphSpan, model: Any, begin: Callable[[], Any], *, is_internal: bool) -> Iterator[Any]:
    call = span.turn.add(span.turn.span(model, span))
    call.is_internal = is_internal
    try:
        with stoppable.boundary("llm", _name(model)), contextlib.closing(begin()) as chunks:
            while (chunk := call.step(functools.partial(next, chunks, None))) is not None:
                with span.turn.suspended(call):
                    yield chunk
    except StreamCut:
        stoppable.check()
        raise
    finally:
        span.turn.end(call)


def _astream(real: Callable[..., Any]) -> Callable[..., Any]:
    def astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        span = current.get()
        if span is None or _is_inner(span, self):
            return real(self, *args, **kwargs)  # type: ignore[no-any-return]
        _watch_chunks(self)
        begin = functools.partial(real, self, *args, **kwargs)
        return _astream_chunks(span, self, begin, is_internal=_is_internal_stream(self, *args, **kwargs))

    return astream


async def _astream_chunks(
    span: GraphSpan, model: Any, begin: Callable[[], Any], *, is_internal: bool
) -> AsyncIterator[Any]:
    await span.turn.check(span)
    call = span.turn.add(span.turn.span(model, span))
    call.is_internal = is_internal
    try:
        with stoppable.boundary("llm", _name(model)):
            async with contextlib.aclosing(begin()) as chunks:
                while (chunk := await call.astep(functools.partial(anext, chunks, None))) is not None:
                    with span.turn.suspended(call):
                        yield chunk
    except StreamCut:
        stoppable.check()
        raise
    finally:
        span.turn.end(call)


# What a model streams, also where LangGraph streams a model that was only called


def _chunks(real: Callable[..., Any]) -> Callable[..., Any]:
    def _stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        span = current.get()
        if span is None or span.streaming:
            yield from real(self, *args, **kwargs)
            return
        span.streaming = True  # a class that calls the method of its base
        for chunk in real(self, *args, **kwargs):
            try:
                yield chunk
            finally:
                span.say(chunk.message)  # which has its id only now
            if stoppable.should_stop():
                raise StreamCut
        span.finish()

    return _stream


def _achunks(real: Callable[..., Any]) -> Callable[..., Any]:
    async def _astream(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        span = current.get()
        is_watched = span is not None and not span.streaming
        if span is not None:
            span.streaming = True
        async with contextlib.aclosing(real(self, *args, **kwargs)) as chunks:
            async for chunk in chunks:
                try:
                    yield chunk
                finally:
                    if span is not None and is_watched:
                        span.say(chunk.message)
                if is_watched and stoppable.should_stop():
                    raise StreamCut
        if span is not None and is_watched:
            span.finish()

    return _astream


# Tools


def _run_tool(real: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is None or _is_inner(span, self):
            return real(self, *args, **kwargs)
        thread, call_id = span.thread, kwargs.get("tool_call_id")
        with stoppable.boundary("tool", self.name), span.turn.inside(span.turn.span(self, span)) as inner:
            inner.is_internal = True
            thread.begin_call(call_id)
            result = real(self, *args, **kwargs)
            thread.end_call(call_id, result)
            return result

    return run


def _arun_tool(real: Callable[..., Any]) -> Callable[..., Any]:
    async def arun(self: Any, *args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is None or _is_inner(span, self):
            return await real(self, *args, **kwargs)
        thread, call_id = span.thread, kwargs.get("tool_call_id")
        await span.turn.check(span)
        with stoppable.boundary("tool", self.name), span.turn.inside(span.turn.span(self, span)) as inner:
            inner.is_internal = True
            thread.begin_call(call_id)
            result = await real(self, *args, **kwargs)
            thread.end_call(call_id, result)
            return result

    return arun


def wrap_nodes() -> None:
    """Wrap the functions that execute the nodes of LangGraph, once."""
    wrap(names.RUNNER, "run_with_retry", _run_node)
    wrap(names.RUNNER, "arun_with_retry", _arun_node)
    wrap(names.RETRY, "_should_retry_on", _should_retry)


def _run_node(real: Callable[..., Any]) -> Callable[..., Any]:
    def run_with_retry(task: Any, *args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is None or _is_hidden(task):
            return real(task, *args, **kwargs)
        with _inside(task, span):
            return real(task, *args, **kwargs)

    return run_with_retry


def _arun_node(real: Callable[..., Any]) -> Callable[..., Any]:
    async def arun_with_retry(task: Any, *args: Any, **kwargs: Any) -> Any:
        span = current.get()
        if span is None or _is_hidden(task):
            return await real(task, *args, **kwargs)
        await span.turn.check(span)
        with _inside(task, span):
            return await real(task, *args, **kwargs)

    return arun_with_retry


def _is_hidden(task: Any) -> bool:
    """Return whether a node is LangGraph's own: the node that stores the input is never stopped."""
    return str(task.name).startswith("__")


@contextlib.contextmanager
def _inside(task: Any, outer: GraphSpan) -> Iterator[None]:
    """Run the block as a node. A stop that an earlier node swallowed, as in an error handler, is raised here again."""
    with stoppable.boundary("node", task.name), outer.turn.inside(outer.turn.span(task, outer)) as span:
        span.is_node, span.is_internal = True, is_internal_node(task.name)
        try:
            yield
        except BaseException:
            span.thread.unsaved_text |= span.streamed_text
            raise


def _should_retry(real: Callable[..., Any]) -> Callable[..., Any]:
    def _should_retry_on(retry_policy: Any, exc: Exception) -> bool:
        if current.get() is not None and stoppable.should_stop():
            return False
        return bool(real(retry_policy, exc))

    return _should_retry_on
