"""Graphs as agents, for ``spawn``, ``Supervisor.start`` and ``stoppable serve``."""

from __future__ import annotations

import contextvars
import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from langchain_core.messages import AIMessageChunk, BaseMessage

import stoppable
from stoppable import Policy
from stoppable.adapters.langgraph.boundaries import is_answer
from stoppable.adapters.langgraph.graphs import GraphCall, as_part_of, instrument
from stoppable.adapters.langgraph.turns import ATTRIBUTE, GraphSettings, OnStop, settings_of
from stoppable.supervisor import Supervisor

G = TypeVar("G")


def stoppable_graph(
    graph: G,
    supervisor: Supervisor | None = None,
    *,
    on_stop: OnStop = "seal",
    seal_seconds: float = 5.0,
    name: str | None = None,
    owner: str | None = None,
    policy: Policy | None = None,
) -> G:
    """Return a graph with the same methods, each call of which is a run: a child inside a run, otherwise a root.

    With a supervisor the runs are kept in its store, and stopped by the key of their thread (``key_of``) or by their
    id. The graph is an agent too: ``spawn(graph, input, config)``. ``on_stop`` decides about its thread when a run is
    stopped: ``seal`` answers each open tool call and keeps the text so far, ``rollback`` restores the state before the
    turn, ``leave`` writes nothing. Sealing may take up to ``seal_seconds``.
    """
    instrument()
    settings = GraphSettings(
        supervisor=supervisor, on_stop=on_stop, seal_seconds=seal_seconds, name=name, owner=owner, policy=policy
    )
    copied: Any = copy.copy(graph)
    kind: Any = type(graph)
    # Not callable: LangGraph's own server takes whatever can be called for a function that makes a graph. LangChain
    # identifies what it draws, traces and serializes by the module and the name of the class, so they stay the same.
    same = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    copied.__class__ = type(kind)(kind.__name__, (kind,), {**same, ATTRIBUTE: settings, "__stoppable_body__": _body})
    return copied  # type: ignore[no-any-return]


# mypy knows properties in classes only; this one becomes an attribute of a class that is made for each graph.
@property  # type: ignore[misc]
def _body(self: Any) -> Callable[..., Any]:
    """Return the function that a run of the graph executes; ``spawn`` and the supervisor ask for it."""

    async def body(input: Any = None, config: Any = None) -> Any:  # noqa: A002
        return await _perform(self, input, config)

    return _with_options(body, self)


def _name(graph: Any) -> str:
    return str(_settings(graph).name or graph.get_name())


def _settings(graph: Any) -> GraphSettings:
    settings = settings_of(graph)
    assert settings is not None, "stoppable_graph made it"
    return settings


def _with_options(function: Callable[..., Any], graph: Any) -> Callable[..., Any]:
    """Return an agent whose runs have the name and the policy of a graph."""
    return stoppable.agent(name=_name(graph), policy=_settings(graph).policy)(function)


async def _perform(graph: Any, input: Any, config: Any) -> Any:  # noqa: A002
    """Run a graph as the body of a run: its result is the last state, its partial the text so far."""

    async def work() -> Any:
        last = None
        with as_part_of(graph):
            stream = graph.astream(input, config, stream_mode=["values", "messages"])
        async for mode, item in stream:
            if mode == "values":
                last = item
            elif not isinstance(item[0], AIMessageChunk) and is_answer(graph, *item):
                stoppable.append_partial(str(item[0].text))  # a whole answer
        return last

    call = GraphCall(graph, input, config)
    # Recorded where the model is called, not where the graph is read: a stop may cut the reader first.
    context = contextvars.copy_context()
    call.on_text = lambda text: context.copy().run(stoppable.append_partial, text)
    return await call.perform(work)


def as_agent(graph: Any, name: str | None = None) -> Callable[..., Any]:
    """Return an agent whose parameters are the keys of a graph's input, and ``thread_id`` if it has a checkpointer.

    Its result is the last state as plain JSON. It is what ``stoppable serve`` serves.
    """
    runnable = graph if settings_of(graph) is not None else stoppable_graph(graph, name=name)
    keys = _keys(runnable)
    signature = _signature(runnable, keys)

    async def agent(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        thread_id = arguments.pop("thread_id", None)
        config = None if thread_id is None else {"configurable": {"thread_id": thread_id}}
        return plain(await _perform(runnable, arguments if keys else arguments["input"], config))

    agent.__name__ = agent.__qualname__ = _name(runnable)
    agent.__doc__ = f"The graph {agent.__name__}."
    agent.__signature__ = signature  # type: ignore[attr-defined]
    return _with_options(agent, runnable)


def _keys(graph: Any) -> dict[str, bool]:
    """Return the keys of a graph's input, and whether each is required; none if the input is not a dictionary."""
    try:
        schema = graph.get_input_jsonschema()
    except Exception:  # an annotation may hold anything: a name that no longer exists, a type without a schema
        schema = {}
    required = schema.get("required", ())
    names = [name for name in schema.get("properties", {}) if name.isidentifier() and name != "thread_id"]
    return {name: name in required for name in sorted(names, key=lambda name: name not in required)}


def _signature(graph: Any, keys: dict[str, bool]) -> inspect.Signature:
    parameters = [_parameter(name, is_needed=is_needed) for name, is_needed in (keys or {"input": True}).items()]
    if graph.checkpointer:
        parameters.append(_parameter("thread_id", is_needed=False))
    return inspect.Signature(parameters)


def _parameter(name: str, *, is_needed: bool) -> inspect.Parameter:
    default = inspect.Parameter.empty if is_needed else None
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def plain(value: Any) -> Any:
    """Return a state as plain JSON, with messages as dictionaries."""
    if isinstance(value, BaseMessage):
        return {"type": value.type, **value.model_dump(mode="json", exclude_defaults=True)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
