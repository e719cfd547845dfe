"""What an agent executes, and how it is written."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import Enum
from types import FunctionType
from typing import Any

from stoppable._core.callables import code_of
from stoppable.errors import InvalidArgument

_BODY = "__stoppable_body__"


class Kind(Enum):
    """How an agent is written."""

    ASYNC = "async def"
    ASYNC_GENERATOR = "async def with yield"
    BLOCKING = "def"
    BLOCKING_GENERATOR = "def with yield"


# Bound once: before 3.12, reading a member off an enum takes longer than a call.
_ASYNC = Kind.ASYNC


def keep_body(agent: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Remember what is under ``@agent``."""
    setattr(agent, _BODY, body)


def body_of(agent: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an agent executes: the function under ``@agent``, with what a partial or a method bound to it."""
    if isinstance(agent, FunctionType):
        body: Callable[..., Any] = agent.__dict__.get(_BODY, agent)
        return body
    if isinstance(agent, functools.partial):
        inner = body_of(agent.func)
        return agent if inner is agent.func else functools.partial(inner, *agent.args, **agent.keywords)
    if not callable(agent):
        raise InvalidArgument(f"{agent!r} is not an agent: pass a function, and its arguments after it")
    marked: Callable[..., Any] | None = getattr(agent, _BODY, None)
    if marked is None:
        return agent
    return functools.partial(marked, agent.__self__) if inspect.ismethod(agent) else marked


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return how an agent is written."""
    if isinstance(function, FunctionType) and function.__code__.co_flags & inspect.CO_COROUTINE:
        return _ASYNC  # nearly all of them
    if not callable(function):
        raise InvalidArgument(f"{function!r} is not an agent: use a function")
    code = code_of(function)
    if inspect.iscoroutinefunction(code):
        return Kind.ASYNC
    if inspect.isasyncgenfunction(code):
        return Kind.ASYNC_GENERATOR
    return Kind.BLOCKING_GENERATOR if inspect.isgeneratorfunction(code) else Kind.BLOCKING
