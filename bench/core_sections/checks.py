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
ELSEWHERE_TARGET = Target(limit=3)


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


def in_thread_of_run(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch on a thread that belongs to a run."""

    def call() -> int:
        try:
            batch().send(None)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value
        raise AssertionError("a batch awaits nothing")

    async def main() -> int:
        async with stoppable.open_run("bench"):
            return await stoppable.to_thread(call)

    return runner.run(main())


@stoppable.agent
def in_agent_process(rounds: int) -> tuple[float, float]:
    """Return what an empty call and a check cost here: both in this process."""
    contenders = [
        Contender(name=FLOOR, statement="empty()", names=lambda: {"empty": empty}),
        Contender(name=OURS, statement="should_stop()", names=lambda: {"should_stop": stoppable.should_stop}),
    ]
    best = measure(contenders, Effort(rounds=rounds))
    return best[FLOOR] or 0.0, best[OURS] or 0.0


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
ELSEWHERE = (
    Contender(
        name="should_stop(), outside any run",
        statement="should_stop()",
        names=lambda: {"should_stop": stoppable.should_stop},
    ),
    Contender(
        name="should_stop(), on a thread of a run",
        statement="should_stop()",
        names=lambda: {"should_stop": stoppable.should_stop},
        drive=in_thread_of_run,
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
    targets = TARGETS | {contender.name: ELSEWHERE_TARGET for contender in ELSEWHERE}
    rounds = 60 if quick else 500
    best = measure([floor, *STOPPABLE, *ELSEWHERE, *PEERS], Effort(rounds=rounds))
    rows = [against(best[FLOOR] or 0.0, name, value, target=targets.get(name)) for name, value in best.items()]
    return Section(title="One check", rows=[*rows, _in_agent_process(rounds), _fastest_peer(best)])


def _in_agent_process(rounds: int) -> Row:
    async def main() -> tuple[float, float]:
        handle = await stoppable.spawn(in_agent_process, rounds, isolation="process")
        return await handle.result()

    floor, value = asyncio.run(main())
    return against(floor, "should_stop(), in an agent process, ÷ an empty call there", value, target=ELSEWHERE_TARGET)


def _fastest_peer(best: Mapping[str, float | None]) -> Row:
    """Make the row that says whether any peer is faster; its ratio is to that peer."""
    value, name = min((value, peer.name) for peer in PEERS if (value := best[peer.name]) is not None)
    ratio = (best[OURS] or 0.0) / value
    return Row(name=f"should_stop() / the fastest peer ({name})", ratio=ratio, target=Target(limit=1, strict=True))
