"""What it costs to enter and leave a boundary."""

from __future__ import annotations

import asyncio
from typing import Self

import stoppable
from core_sections.places import in_own_task, in_run, in_trio, noop
from measure import Contender, Effort, load, measure
from table import Section, Target, against

FLOOR = "bare await of an empty coroutine (floor)"
AROUND = "with {}:\n    await noop()"
WITH = AROUND.format('boundary("tool", "x")')
TARGET = Target(limit=8)


class _Shell:
    """What `async with` costs around an object that is made as a boundary is, and does nothing."""

    __slots__ = ("_run", "kind", "name")

    kind: str
    name: str
    _run: object

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: object, tb: object) -> None:
        pass


def _shell(kind: str, name: str) -> _Shell:
    shell = _Shell()
    shell.kind = kind
    shell.name = name
    shell._run = None
    return shell


def _boundary() -> dict[str, object]:
    return {"boundary": stoppable.boundary, "noop": noop}


OURS = (
    Contender(name='with stoppable.boundary("tool", "x")', statement=WITH, names=_boundary, drive=in_run),
    Contender(
        name='async with stoppable.boundary("tool", "x")', statement=f"async {WITH}", names=_boundary, drive=in_run
    ),
    Contender(
        name='@stoppable.boundary("tool", "x")',
        statement="await tool()",
        names=lambda: {"tool": stoppable.boundary("tool", "x")(noop)},
        drive=in_run,
    ),
)
OTHERS = (
    Contender(
        name="async with an object made alike that does nothing",
        statement="async " + AROUND.format('shell("tool", "x")'),
        names=lambda: {"shell": _shell, "noop": noop},
    ),
    Contender(
        name="with stoppable.boundary(…), in a task of the user's", statement=WITH, names=_boundary, drive=in_own_task
    ),
    Contender(
        name="async with asyncio.timeout(None)",
        statement=f"async {AROUND.format('timeout(None)')}",
        names=lambda: {"timeout": asyncio.timeout, "noop": noop},
    ),
    Contender(
        name="with trio.CancelScope()",
        statement=AROUND.format("CancelScope()"),
        names=lambda: {"CancelScope": load("trio").CancelScope, "noop": noop},
        drive=in_trio,
    ),
    Contender(
        name="with anyio.CancelScope()",
        statement=AROUND.format("CancelScope()"),
        names=lambda: {"CancelScope": load("anyio").CancelScope, "noop": noop},
    ),
)


def measure_section(quick: bool) -> Section:
    """Time each way to enter and leave around an await, and take the bare await off."""
    bare = Contender(name=FLOOR, statement="await noop()", names=lambda: {"noop": noop})
    best = measure([bare, *OURS, *OTHERS], Effort(rounds=60 if quick else 500))
    floor = best.pop(FLOOR) or 0.0
    targets = {contender.name: TARGET for contender in OURS}
    rows = [against(floor, FLOOR, floor)]
    for name, value in best.items():
        rows.append(against(floor, name, None if value is None else value - floor, target=targets.get(name)))
    return Section(title="Enter and leave a boundary, without the await inside", rows=rows)
