"""Nodes and tasks of graphs as boundaries, on the thread or in the task that executes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import stoppable
from stoppable.adapters.langgraph import names
from stoppable.adapters.langgraph.internal import is_internal_node
from stoppable.adapters.langgraph.turn import Unit, here
from stoppable.adapters.langgraph.wrapping import wrap


def wrap_nodes() -> None:
    """Wrap the functions that execute the nodes of LangGraph, once."""
    wrap(names.RUNNER, "run_with_retry", _run)
    wrap(names.RUNNER, "arun_with_retry", _arun)
    wrap(names.RETRY, "_should_retry_on", _should_retry)


def _run(real: Callable[..., Any]) -> Callable[..., Any]:
    def run_with_retry(task: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_hidden(task):
            return real(task, *args, **kwargs)
        with _inside(task, unit):
            return real(task, *args, **kwargs)

    return run_with_retry


def _arun(real: Callable[..., Any]) -> Callable[..., Any]:
    async def arun_with_retry(task: Any, *args: Any, **kwargs: Any) -> Any:
        unit = here()
        if unit is None or _is_hidden(task):
            return await real(task, *args, **kwargs)
        await unit.turn.check(unit)
        with _inside(task, unit):
            return await real(task, *args, **kwargs)

    return arun_with_retry


def _is_hidden(task: Any) -> bool:
    """Return whether a node is LangGraph's own: the node that stores the input is never stopped."""
    return str(task.name).startswith("__")


@contextlib.contextmanager
def _inside(task: Any, outer: Unit) -> Iterator[None]:
    """Run the block as a node. A stop that an earlier node swallowed, as in an error handler, is raised here again."""
    with stoppable.boundary("node", task.name), outer.turn.inside(task, outer) as unit:
        unit.is_node, unit.is_internal = True, is_internal_node(task.name)
        try:
            yield
        except BaseException:
            unit.thread.said |= unit.said
            raise


def _should_retry(real: Callable[..., Any]) -> Callable[..., Any]:
    def _should_retry_on(retry_policy: Any, exc: Exception) -> bool:
        if here() is not None and stoppable.should_stop():
            return False
        return bool(real(retry_policy, exc))

    return _should_retry_on
