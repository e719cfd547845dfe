"""Models, tools and code of agents as boundaries, and waits that a stop ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator
from typing import Any

from smolagents import ApiModel, FinalAnswerTool, utils
from smolagents import local_python_executor as executor_module

import stoppable
from stoppable import sync
from stoppable.adapters._upstream import wrap
from stoppable.adapters.smolagents.names import classes_with
from stoppable.adapters.smolagents.turns import AgentTurn, current

CODE = "python_interpreter"
"""The name under which a CodeAgent calls its code."""

# Models


def guard_model(model: Any) -> None:
    """Make the calls of a model boundaries, unless it sends them over HTTP: there, each request is one."""
    if not isinstance(model, ApiModel):
        for kind in classes_with(model, "generate"):
            wrap(kind, "generate", _generate)
        for kind in classes_with(model, "generate_stream"):
            wrap(kind, "generate_stream", _generate_stream)


_is_asking: contextvars.ContextVar[bool] = contextvars.ContextVar("stoppable-smolagents-asking", default=False)


@contextlib.contextmanager
def _call_of(model: Any) -> Iterator[None]:
    """Enter the boundary of a model call; a method that calls that of its base class is one call.

    It belongs to the run, not to the thread: a model that sends requests all the same can then be cut there.
    """
    if _is_asking.get():
        yield
        return
    entered = stoppable.enter("llm", str(getattr(model, "model_id", None) or type(model).__name__), until="run")
    try:
        yield
    except BaseException as error:
        entered.leave(error)
        raise
    entered.leave()


def _generate(real: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _call_of(self):
            token = _is_asking.set(True)
            try:
                return real(self, *args, **kwargs)
            finally:
                _is_asking.reset(token)

    return generate


def _generate_stream(real: Callable[..., Any]) -> Callable[..., Any]:
    def generate_stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with _call_of(self), contextlib.closing(real(self, *args, **kwargs)) as deltas:
            for delta in _apart(deltas):
                yield delta
                stoppable.check()

    return generate_stream


def _apart(items: Iterator[Any]) -> Iterator[Any]:
    """Read a generator as a part of one call of a model; between two items its reader is no part of it."""
    while True:
        token = _is_asking.set(True)
        try:
            item = next(items, _END)
        finally:
            _is_asking.reset(token)
        if item is _END:
            return
        yield item


_END = object()


# Tools


def guard_tools(agent: Any) -> None:
    """Let the tools and the team of an agent be boundaries where its code calls them."""
    for tool in (*agent.tools.values(), *agent.managed_agents.values()):
        for kind in classes_with(tool, "__call__"):
            wrap(kind, "__call__", _call_in_code)


def execute_tool_call(real: Callable[..., Any]) -> Callable[..., Any]:
    """Make the tools that a ToolCallingAgent calls boundaries."""

    def execute(self: Any, tool_name: str, arguments: Any) -> Any:
        turn = current.get()
        if turn is None or turn.agent is not self or is_final_answer(self.tools.get(tool_name)):
            return real(self, tool_name, arguments)
        with stoppable.boundary("tool", tool_name), turn.performing(tool_name, arguments) as finish:
            return finish(real(self, tool_name, arguments))

    return execute


def is_final_answer(tool: object) -> bool:
    """Return whether a tool only hands out the answer; a stop that comes so late does not take that away."""
    return type(tool) is FinalAnswerTool


# Code


_code: contextvars.ContextVar[AgentTurn | None] = contextvars.ContextVar("stoppable-smolagents-code", default=None)
"""The turn whose code executes, but not inside the tools that the code calls."""


def guard_executor(executor: Any) -> None:
    """Make each execution of code a boundary."""
    for kind in classes_with(executor, "__call__"):
        wrap(kind, "__call__", _execute_code)


def _execute_code(real: Callable[..., Any]) -> Callable[..., Any]:
    def execute(self: Any, code: Any, *args: Any, **kwargs: Any) -> Any:
        turn = current.get()
        if turn is None or getattr(turn.agent, "python_executor", None) is not self or _code.get() is turn:
            return real(self, code, *args, **kwargs)
        with stoppable.boundary("tool", CODE), turn.performing(CODE, code) as finish:
            token = _code.set(turn)
            try:
                return finish(real(self, code, *args, **kwargs))
            finally:
                _code.reset(token)

    return execute


def _call_in_code(real: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        turn = _code.get()
        if turn is None or is_final_answer(self):
            return real(self, *args, **kwargs)
        with stoppable.boundary("tool", str(self.name)), turn.performing_in_code(str(self.name)) as finish:
            token = _code.set(None)
            try:
                return finish(real(self, *args, **kwargs))
            finally:
                _code.reset(token)

    return call


class _Executor(concurrent.futures.ThreadPoolExecutor):
    """Executes code with a time limit, in the context of the agent: the tools that it calls belong to a turn."""

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        return super().submit(contextvars.copy_context().run, function, *args, **kwargs)


# Waits


class _Time:
    """The module ``time``, as smolagents uses it for rate limits and before it calls a model again."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    @staticmethod
    def sleep(seconds: float) -> None:
        """Sleep; a stop of the run ends it at once."""
        sync.sleep(seconds)


def replace_waits() -> None:
    """Let a stop end the waits of smolagents, and code with a time limit execute in the context of its agent."""
    utils.time = _Time()
    executor_module.ThreadPoolExecutor = _Executor
