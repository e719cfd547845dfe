"""Finds agents: ``MODULE``, or ``MODULE:ATTR``."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from stoppable._engine.agent_functions import adapt_object, name_of
from stoppable.cli.exits import CommandError, Exit

Agent: TypeAlias = Callable[..., Any]


def agents(target: str) -> dict[str, Agent]:
    """Return the agents that a target means: every ``@agent`` of a module, or what its attribute holds."""
    module_name, _, attribute = target.partition(":")
    module = _module(module_name)
    if attribute:
        return _of_attribute(target, _attribute(module, module_name, attribute))
    marked_agents = {name: value for name, value in vars(module).items() if is_agent(value)}
    if not marked_agents:
        raise CommandError(
            f"{module_name} has no agents: mark functions with @stoppable.agent, or name one as {module_name}:function"
        )
    return _by_name(module_name, ((value.__name__, value) for value in marked_agents.values()))


def agent(target: str) -> Agent:
    """Return the one agent that a target names."""
    if ":" not in target:
        candidates = agents(target)
        if len(candidates) > 1:
            names = ", ".join(f"{target}:{name}" for name in candidates)
            raise CommandError(f"{target} has several agents: choose one of {names}")
        return next(iter(candidates.values()))
    module_name, _, attribute = target.partition(":")
    value = _attribute(_module(module_name), module_name, attribute)
    value_or_agent = adapt_object(value, attribute) or value
    if not callable(value_or_agent):
        raise CommandError(f"{target} is a {type(value_or_agent).__name__}, not an agent: name a function")
    agent_function: Agent = value_or_agent
    return agent_function


def is_agent(value: object) -> bool:
    """Return whether something was marked with ``@agent``."""
    return "__stoppable_body__" in getattr(value, "__dict__", ())


def _of_attribute(target: str, value: Any) -> dict[str, Agent]:
    attribute = target.partition(":")[2]
    if (agent := adapt_object(value, attribute)) is not None:
        return {attribute: agent}
    if callable(value):
        return {getattr(value, "__name__", attribute): value}
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise CommandError(f"{target} is a {type(value).__name__}: name an agent, or a list or dict of agents")
    items = value.items() if isinstance(value, Mapping) else ((None, one) for one in value)
    pairs = [(name, adapt_object(one, name) or one) for name, one in items]
    named_agents = [(name_of(one) if name is None else name, one) for name, one in pairs]
    if not named_agents:
        raise CommandError(f"{target} is empty: put agents into it")
    for name, one in named_agents:
        if not callable(one) or not isinstance(name, str):
            raise CommandError(f"{target} has {one!r} under {name!r}: it takes agents, in a dict under their names")
    return _by_name(target, named_agents)


def _by_name(target: str, pairs: Iterable[tuple[str, Agent]]) -> dict[str, Agent]:
    agents: dict[str, Agent] = {}
    for name, one in pairs:
        if agents.setdefault(name, one) is not one:
            raise CommandError(f"{target} has two agents called {name!r}: give a dict with a name for each")
    return agents


def _module(name: str) -> Any:
    module_name = name.removesuffix(".py").removeprefix(f".{os.sep}").replace(os.sep, ".")
    if not all(module_name.split(".")):
        raise CommandError(f"{name!r} is not a module: use MODULE:AGENT, as in agents:research")
    here = os.getcwd()  # noqa: PTH109 - as it stands in sys.path
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(
                f"{name} needs the module {error.name}, which is not installed{_place_of(error)}", Exit.NOT_FOUND
            ) from error
        raise CommandError(
            f"no module {name!r}: run this in the folder that has it, or install it", Exit.NOT_FOUND
        ) from error
    except (Exception, SystemExit) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        raise CommandError(
            f"{name} cannot be imported: {type(error).__name__}: {message}{_place_of(error)}", Exit.FAILED
        ) from error


def _place_of(error: BaseException) -> str:
    """Return the file and line where an import went wrong: the last one of code that is not installed."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}:{error.lineno}: {(error.text or '').strip()})"
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith("<frozen ")]
    if len(frames) < 2:
        return ""
    frame = frames[-1]
    for one in frames[1:]:
        if not _is_installed(one.filename):
            frame = one
    return f" ({frame.filename}:{frame.lineno}: {frame.line})"


def _is_installed(filename: str) -> bool:
    return any(filename.startswith(f"{sysconfig.get_path(kind)}{os.sep}") for kind in ("stdlib", "purelib"))


def _attribute(module: Any, module_name: str, attribute: str) -> Any:
    value = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise CommandError(
                f"{module_name} has no {attribute!r}: {_hint(module, attribute)}", Exit.NOT_FOUND
            ) from None
    return value


def _hint(module: Any, attribute: str) -> str:
    """Return what was probably meant, or what a module has instead: its agents, or else its own functions."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    agents = [name for name, value in public.items() if is_agent(value)]
    functions = [name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    if close := difflib.get_close_matches(attribute, dict.fromkeys((*agents, *functions)), n=1):
        return f"did you mean {close[0]}?"
    return f"it has {', '.join(agents or functions)}" if agents or functions else "it has no functions"


def call(agent: Agent, input_value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call: keywords from an object, otherwise a single one, or none."""
    if input_value is None:
        return (), {}
    args, kwargs = ((), input_value) if isinstance(input_value, dict) else ((input_value,), {})
    try:
        inspect.signature(agent).bind(*args, **kwargs)
    except TypeError as error:
        raise CommandError(f"{name_of(agent)} cannot take these arguments: {error}") from None
    except ValueError:
        pass  # written in C, without a signature
    return args, kwargs


def yields(agent: Agent) -> bool:
    """Return whether an agent is a generator, of either kind."""
    inner = inspect.unwrap(agent.func if isinstance(agent, functools.partial) else agent)
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)
