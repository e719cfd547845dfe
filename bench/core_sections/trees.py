"""What it costs to stop a tree of ten thousand runs, whatever its shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from measure import Effort, Job, collector_held, load, measure_once
from stoppable._core.node import RunNode
from table import Row, Section, Target, against

NODES = 10_000
FLOOR = "for o in objects: o.flag = True (floor)"
TARGET = Target(limit=10)
ALIKE = Target(limit=1.5)
RECEIPT = "the receipt of a tree, once all have ended, CPU"
RECEIPT_TARGET = Target(limit=15, absolute=True)

# A node's number to its parent's; 0 is the root.
SHAPES: dict[str, Callable[[int], int]] = {
    "flat": lambda number: 0,  # noqa: ARG005
    "10-ary": lambda number: (number - 1) // 10,
    "chain": lambda number: number - 1,
}


class Flag:
    """The least that can be told to stop."""

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = False


def set_flags(objects: list[Flag]) -> None:
    """Tell everybody, in a plain loop."""
    for o in objects:
        o.flag = True


def clear_flags(objects: list[Flag]) -> list[Flag]:
    """Make the objects ready for the next round."""
    for o in objects:
        o.flag = False
    return objects


def build_runs(shape: str) -> list[RunNode]:
    """Make a tree of runs; the root comes first."""
    parent_of = SHAPES[shape]
    runs = [RunNode("root")]
    for number in range(1, NODES):
        runs.append(RunNode("node", runs[parent_of(number)]))
    return runs


def build_ended() -> RunNode:
    """Make the root of a tree of runs that were stopped and have ended."""
    runs = build_runs("flat")
    stop_root(runs)
    for run in reversed(runs):
        run.skip()
    assert len(runs[0].receipt.entries) == NODES, "there is one for each run"
    return runs[0]


def build_tokens(shape: str) -> list[Any]:
    """Make a tree of AutoGen tokens, each cancelled by its parent's callback."""
    token_class = load("autogen_core").CancellationToken
    parent_of = SHAPES[shape]
    tokens = [token_class()]
    for number in range(1, NODES):
        tokens.append(token_class())
        tokens[parent_of(number)].add_callback(tokens[number].cancel)
    return tokens


def stop_root(runs: list[RunNode]) -> object:
    """Stop the whole tree."""
    return runs[0].stop("cooperative")


def cancel_root(tokens: list[Any]) -> None:
    """Cancel the whole tree."""
    tokens[0].cancel()


def measure_section(quick: bool) -> Section:
    """Time the stop of each shape against a loop that sets as many flags."""
    # The same objects in every round, side by side in memory as they were made, and in the cache like a tree that was
    # built a moment ago: fresh ones land in the gaps that the trees left, and the floor would rise with the gaps.
    flags = [Flag() for _ in range(NODES)]
    floor = Job(name=FLOOR, build=lambda: clear_flags(flags), act=set_flags)
    ours = [_job('stoppable root.stop("cooperative")', shape, build_runs, stop_root) for shape in SHAPES]
    peers = [_job("AutoGen root.cancel()", shape, build_tokens, cancel_root) for shape in ("flat", "10-ary")]
    for job in ours:
        _prove(job)
    here = [floor, *ours, *(peers if find_spec("autogen_core") else ())]
    best = measure_once(here, Effort(rounds=8 if quick else 40))
    millis = {job.name: best[job.name] / 1e6 if job.name in best else None for job in (floor, *ours, *peers)}
    targets = {job.name: TARGET for job in ours}
    rows = [
        against(best[FLOOR] / 1e6, name, spent, target=targets.get(name), unit="ms") for name, spent in millis.items()
    ]
    times = [best[job.name] for job in ours]
    rows.append(Row(name="slowest / fastest of the three shapes", ratio=max(times) / min(times), target=ALIKE))
    receipt = min(_receipt_cpu() for _ in range(8 if quick else 40)) * 1e3
    rows += [_autogen_chain(), Row(name=RECEIPT, value=receipt, unit="ms", target=RECEIPT_TARGET)]
    return Section(title=f"Stop a tree of {NODES:,} nodes", rows=rows)


def _receipt_cpu() -> float:
    """Return the seconds of CPU that the receipt of a large tree takes."""
    root = build_ended()
    with collector_held():
        began = time.thread_time()
        root.receipt  # noqa: B018 - it is made anew at each look
        return time.thread_time() - began


def _job(what: str, shape: str, build: Callable[[str], list[Any]], act: Callable[[list[Any]], object]) -> Job:
    return Job(name=f"{what}, {shape}", build=lambda: build(shape), act=act)


def _prove(job: Job) -> None:
    """Make sure that what is timed is a stop of the whole tree."""
    runs = job.build()
    job.act(runs)
    assert all(run.token.stopped for run in runs), f"{job.name}: not all were told"


def _autogen_chain() -> Row:
    """Say what becomes of the shape that AutoGen's callbacks cannot walk."""
    name = "AutoGen root.cancel(), chain"
    try:
        chain = build_tokens("chain")
    except ModuleNotFoundError:
        return Row(name=name, note="not installed")
    try:
        cancel_root(chain)
    except RecursionError:
        return Row(name=name, note=f"RecursionError, {sum(token.is_cancelled() for token in chain):,} told")
    return Row(name=name, note="all told")
