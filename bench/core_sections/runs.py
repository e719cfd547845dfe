"""What it costs to start a run and see it end."""

from __future__ import annotations

import asyncio

import stoppable
from core_sections.places import in_run, in_trio, noop
from measure import Contender, Effort, garbage, load, measure
from stoppable._core import context
from stoppable._core.node import RunNode
from stoppable._engine.tasks import TaskParticipant
from table import Section, Target, against, number

FLOOR = Contender(
    name="await create_task(noop()) (floor)",
    statement="await create_task(noop())",
    names=lambda: {"create_task": asyncio.create_task, "noop": noop},
)
SPAWN = "await (await spawn(noop)).result()"
TARGET = Target(limit=2)
SKELETON = "a task with a Run and its participant, begun and ended, and nothing else: a "
NOTE = (
    "The skeleton is what is left of a spawn without its edge: nobody can await its outcome from elsewhere, a cancel "
    "before its first step leaves it without an end, and an exception is not sorted."
)
NO_TASK = "call and open_run execute in the caller's task: they pay for no task, the floor does."


async def _skeleton() -> None:
    run = RunNode("noop", context.current_run())
    await asyncio.create_task(_drive(run))


async def _drive(run: RunNode) -> None:
    task = asyncio.current_task()
    participant = TaskParticipant(task, task.get_loop())  # type: ignore[union-attr, arg-type]
    context.current.set(run)
    run.begin(participant)
    run.end(await noop(), None)
    participant.leave()


def _stoppable() -> dict[str, object]:
    return {"spawn": stoppable.spawn, "call": stoppable.call, "open_run": stoppable.open_run, "noop": noop}


OURS = (
    Contender(name="stoppable.spawn(noop), result(): a root", statement=SPAWN, names=_stoppable),
    Contender(name="stoppable.spawn(noop), result(): a child", statement=SPAWN, names=_stoppable, drive=in_run),
    Contender(name="stoppable.call(noop), inside a run", statement="await call(noop)", names=_stoppable, drive=in_run),
    Contender(
        name='async with stoppable.open_run("x")',
        statement='async with open_run("x"):\n    await noop()',
        names=_stoppable,
    ),
)
WITHOUT_EDGE = (
    Contender(name=SKELETON + "root", statement="await skeleton()", names=lambda: {"skeleton": _skeleton}),
    Contender(
        name=SKELETON + "child", statement="await skeleton()", names=lambda: {"skeleton": _skeleton}, drive=in_run
    ),
)
PEERS = (
    Contender(
        name="AutoGen token, link_future(create_task(noop()))",
        statement="await CancellationToken().link_future(create_task(noop()))",
        names=lambda: {
            "CancellationToken": load("autogen_core").CancellationToken,
            "create_task": asyncio.create_task,
            "noop": noop,
        },
    ),
    Contender(
        name="asyncio.TaskGroup with one task",
        statement="async with TaskGroup() as group:\n    group.create_task(noop())",
        names=lambda: {"TaskGroup": asyncio.TaskGroup, "noop": noop},
    ),
    Contender(
        name="anyio task group with one task",
        statement="async with create_task_group() as group:\n    group.start_soon(noop)",
        names=lambda: {"create_task_group": load("anyio").create_task_group, "noop": noop},
    ),
    Contender(
        name="trio nursery with one task",
        statement="async with open_nursery() as nursery:\n    nursery.start_soon(noop)",
        names=lambda: {"open_nursery": load("trio").open_nursery, "noop": noop},
        drive=in_trio,
    ),
)


def measure_section(quick: bool) -> Section:
    """Time start and finish against a bare task, and count what each leaves to the cycle collector."""
    contenders = [FLOOR, *OURS, *WITHOUT_EDGE, *PEERS]
    best = measure(contenders, Effort(rounds=60 if quick else 400, batch_ns=2_000_000))
    micros = {name: None if value is None else value / 1e3 for name, value in best.items()}
    floor = micros[FLOOR.name] or 0.0
    targets = {contender.name: TARGET for contender in OURS}
    rows = [against(floor, name, value, target=targets.get(name), unit="µs") for name, value in micros.items()]
    return Section(title="Start and finish a run", rows=rows, notes=[NO_TASK, NOTE, _garbage_note(contenders)])


def _garbage_note(contenders: list[Contender]) -> str:
    left = [(contender.name, garbage(contender)) for contender in contenders]
    dirty = [f"{name} {number(count)}" for name, count in left if count]
    return f"Objects left to the cycle collector, each time: {', '.join(dirty) if dirty else 'none by anybody'}."
