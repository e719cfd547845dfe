"""What one look at "was I told to stop?" costs."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Mapping
from typing import Any

import stoppable
from core_sections.places import in_anyio_scope, in_own_task, in_run, in_trio
from measure import Batch, Contender, Effort, load, measure
from table import Row, Section, Target, against

FLOOR = "empty Python call (floor)"
OURS = "stoppable.should_stop()"
TARGETS = {OURS: Target(limit=2.5)}


def empty() -> None:
    """Do nothing."""


def dict_of_events() -> Mapping[str, object]:
    """Make the pattern of an A2A executor: an event by task id, behind a function."""
    events = {f"task-{number}": asyncio.Event() for number in range(100)}

    def is_cancelled(task_id: str) -> bool:
        return events[task_id].is_set()

    return {"is_cancelled": is_cancelled, "task_id": "task-50"}


_current: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("current")
_get = _current.get  # bound once, as stoppable does it


def event_in_context() -> bool:
    """Look at an event that is found through a context variable."""
    return _get().is_set()


def with_event(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch with an event in its context."""

    async def main() -> int:
        _current.set(threading.Event())
        return await batch()

    return runner.run(main())


def _lowlevel(module: str) -> Callable[[], Mapping[str, Any]]:
    return lambda: {"checkpoint_if_cancelled": load(module).checkpoint_if_cancelled}


STOPPABLE = (
    Contender(name=OURS, statement="should_stop()", names=lambda: {"should_stop": stoppable.should_stop}, drive=in_run),
    Contender(name="stoppable.check()", statement="check()", names=lambda: {"check": stoppable.check}, drive=in_run),
    Contender(
        name="stoppable.check(), in a task of the user's",
        statement="check()",
        names=lambda: {"check": stoppable.check},
        drive=in_own_task,
    ),
)
PEERS = (
    Contender(
        name="threading.Event through a contextvar",
        statement="is_cancelled()",
        names=lambda: {"is_cancelled": event_in_context},
        drive=with_event,
    ),
    Contender(name="dict + asyncio.Event", statement="is_cancelled(task_id)", names=dict_of_events),
    Contender(
        name="asyncio.current_task().cancelling()",
        statement="current_task().cancelling()",
        names=lambda: {"current_task": asyncio.current_task},
    ),
    Contender(
        name="AutoGen CancellationToken.is_cancelled()",
        statement="token.is_cancelled()",
        names=lambda: {"token": load("autogen_core").CancellationToken()},
    ),
    Contender(
        name="trio checkpoint_if_cancelled()",
        statement="await checkpoint_if_cancelled()",
        names=_lowlevel("trio.lowlevel"),
        drive=in_trio,
    ),
    Contender(
        name="anyio checkpoint_if_cancelled()",
        statement="await checkpoint_if_cancelled()",
        names=_lowlevel("anyio.lowlevel"),
        drive=in_anyio_scope,
    ),
)


def measure_section(quick: bool) -> Section:
    """Time a check against an empty call and against the peers."""
    floor = Contender(name=FLOOR, statement="empty()", names=lambda: {"empty": empty})
    best = measure([floor, *STOPPABLE, *PEERS], Effort(rounds=60 if quick else 500))
    rows = [against(best[FLOOR] or 0.0, name, value, target=TARGETS.get(name)) for name, value in best.items()]
    return Section(title="One check", rows=[*rows, _fastest_peer(best)])


def _fastest_peer(best: Mapping[str, float | None]) -> Row:
    """Make the row that says whether any peer is faster; its ratio is to that peer."""
    value, name = min((value, peer.name) for peer in PEERS if (value := best[peer.name]) is not None)
    ratio = (best[OURS] or 0.0) / value
    return Row(name=f"should_stop() / the fastest peer ({name})", ratio=ratio, target=Target(limit=1, strict=True))
