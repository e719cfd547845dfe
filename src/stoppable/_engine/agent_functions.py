"""The properties of an agent: its function, the kind of that function, and the defaults of its runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import FunctionType
from typing import Any

from stoppable._core.participants import code_of
from stoppable._core.values import Policy, check_given, check_labels
from stoppable.errors import InvalidArgument

_BODY = "__stoppable_body__"


class Kind(Enum):
    """The kind of an agent function."""

    ASYNC = "async def"
    ASYNC_GENERATOR = "async def with yield"
    BLOCKING = "def"
    BLOCKING_GENERATOR = "def with yield"


# Bound once: before 3.12, reading an enum member is slower than a call.
_ASYNC = Kind.ASYNC


def keep_body(agent: Callable[..., Any], body: Callable[..., Any]) -> None:
    """Remember the function under ``@agent``."""
    setattr(agent, _BODY, body)


def body_of(agent: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that an agent executes: the one under ``@agent``, with the arguments bound to it."""
    if isinstance(agent, FunctionType):
        body: Callable[..., Any] = agent.__dict__.get(_BODY, agent)
        return body
    if isinstance(agent, functools.partial):
        inner = body_of(agent.func)
        return agent if inner is agent.func else functools.partial(inner, *agent.args, **agent.keywords)
    inner_body: Callable[..., Any] | None = getattr(agent, _BODY, None)  # an object that has one need not be callable
    if inner_body is None and not callable(agent):
        raise InvalidArgument(f"{agent!r} is not an agent: pass a function, and its arguments after it")
    if inner_body is None:
        return agent
    return functools.partial(inner_body, agent.__self__) if inspect.ismethod(agent) else body_of(inner_body)


def kind_of(function: Callable[..., Any]) -> Kind:
    """Return the kind of an agent function."""
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


_OPTIONS = "__stoppable_options__"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The name, labels and policy of a run; None means the agent's default, then the parent's."""

    name: str | None = None
    labels: Mapping[str, str] | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.name is not None and not (isinstance(self.name, str) and self.name):
            raise InvalidArgument(f"name is {self.name!r:.40}: use a string")
        check_given(None, self.policy)
        check_labels(self.labels or {})

    def over(self, defaults: RunOptions) -> RunOptions:
        """Return these options, completed with defaults; labels are merged."""
        return RunOptions(
            name=self.name or defaults.name,
            labels={**(defaults.labels or {}), **(self.labels or {})},
            policy=self.policy or defaults.policy,
        )


NO_OPTIONS = RunOptions()


def merge_options(
    agent: Callable[..., Any], name: str | None, labels: Mapping[str, str] | None, policy: Policy | None
) -> RunOptions:
    """Return the options of a start, completed with the agent's defaults."""
    own = options_of(agent)
    if name is None and labels is None and policy is None:
        return own
    return RunOptions(name=name, labels=labels, policy=policy).over(own)


def with_keywords(agent: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[..., Any]:
    """Return an agent with its keyword arguments; raise TypeError now, for the caller, if it does not take them."""
    if not keywords:
        return agent
    if not callable(agent):
        agent = getattr(agent, _BODY, None) or body_of(agent)  # with its options; the latter refuses what is no agent
    with suppress(ValueError):  # some functions in C do not tell their parameters
        try:
            inspect.signature(agent).bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"{name_of(agent)} cannot be started with these arguments: {error}") from None
    return partial(agent, **keywords)


def options_of(agent: Callable[..., Any]) -> RunOptions:
    """Return the options of ``@agent(…)``, also through a partial, a method or an object that has such an agent."""
    while isinstance(agent, partial):
        agent = agent.func
    options: RunOptions = getattr(agent, _OPTIONS, NO_OPTIONS)
    if options is NO_OPTIONS:
        options = getattr(getattr(agent, _BODY, None), _OPTIONS, NO_OPTIONS)
    return options


def keep_options(agent: Callable[..., Any], options: RunOptions) -> None:
    """Remember the options of ``@agent(…)``."""
    setattr(agent, _OPTIONS, options)


def name_of(agent: Callable[..., Any]) -> str:
    """Return the default name of an agent's runs."""
    while isinstance(agent, partial):
        agent = agent.func
    return options_of(agent).name or getattr(agent, "__name__", None) or type(agent).__name__


GROUP = "stoppable.agents"
"""The entry points of adapters: the name is a package or module, the object a function ``(value, name) -> agent``."""


def adapt_object(value: Any, name: str | None = None) -> Callable[..., Any] | None:
    """Return the agent that an adapter makes of an object, or None if there is no adapter for it.

    An adapter handles objects whose class, or one of its base classes, is defined in the package or module that its
    entry point is named after. Finding the adapter imports nothing.
    """
    if isinstance(value, FunctionType | type):
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and rarely needed

    modules = {f"{kind.__module__}." for kind in type(value).__mro__}
    for entry in entry_points(group=GROUP):
        if any(module.startswith(f"{entry.name}.") for module in modules):
            agent: Callable[..., Any] = entry.load()(value, name)
            return agent
    return None
