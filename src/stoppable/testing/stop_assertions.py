"""Checks that an agent stops: at one of its boundaries, or at each of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode, Sink
from stoppable._core.values import Outcome, Status
from stoppable._engine.agent_functions import body_of
from stoppable._engine.agents import root_run, start
from stoppable._engine.handle import RunHandle
from stoppable.agent_check.observations import unguarded_effects, watched_processes

_DRY_RUN_SECONDS = 30.0
_LEFTOVER_SECONDS = 1.0


class _StopAt(Sink):
    """A sink that stops its run when it enters a boundary: the n-th, or the first with a kind or label."""

    def __init__(self, root: RunNode, *, number: int | None = None, at: str | None = None) -> None:
        self._root = root
        self._number = number
        self._at = at
        self.entered_before: list[str] = []
        self.after: list[str] = []

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        if run.closed:
            self.after.append(boundary.label)
            return
        self.entered_before.append(boundary.label)
        if self._number == len(self.entered_before) or self._at in {boundary.kind, boundary.label}:
            self._root.stop("cooperative", "assert_stops")


async def assert_stops(agent: Callable[..., Any], *args: Any, at: str, within: float = 2.0) -> Outcome[Any]:
    """Run an agent, stop it when it enters the boundary ``at`` (a kind or a label), and check that it stops cleanly.

    It must end within ``within`` seconds of the stop, leave no thread and no process behind, and have no effect outside
    its boundaries.
    """
    run = root_run(agent)
    trap = _StopAt(run, at=at)
    problems, outcome = await _run_once(agent, args, run, trap, within)
    if not run.token.stopped:
        failed = "" if outcome.error is None else f", and ended with {outcome.error!r}"
        problems = [f"it never entered {at!r}; it entered {trap.entered_before}{failed}"]
    if problems:
        raise AssertionError(f"{run.name}, stopped at {at}:\n  " + "\n  ".join(problems))
    return outcome


async def assert_stops_everywhere(agent: Callable[..., Any], *args: Any, within: float = 2.0) -> int:
    """Stop a new run of an agent at each of its boundaries, and return how many there are.

    A first run, which is not stopped, counts them; it must complete without an error.
    """
    dry = root_run(agent)
    counting = _StopAt(dry)
    try:
        with _kill_at_exit(dry):
            handle = _start(agent, args, dry, counting)
            async with asyncio.timeout(_DRY_RUN_SECONDS):
                outcome = await handle.outcome()
    except TimeoutError:
        raise AssertionError(f"{dry.name} did not end by itself within {_DRY_RUN_SECONDS:g} seconds") from None
    if outcome.status is Status.FAILED:
        raise AssertionError(f"{dry.name} failed by itself: {outcome.error!r}") from outcome.error
    report: list[str] = []
    for number, label in enumerate(counting.entered_before, 1):
        run = root_run(agent)
        problems, _ = await _run_once(agent, args, run, _StopAt(run, number=number), within)
        report += [f"stopped at boundary {number} ({label}): {problem}" for problem in problems]
    if report:
        raise AssertionError(f"{dry.name} does not stop everywhere:\n  " + "\n  ".join(report))
    return len(counting.entered_before)


async def _run_once(
    agent: Callable[..., Any], args: tuple[Any, ...], run: RunNode, trap: _StopAt, within: float
) -> tuple[list[str], Outcome[Any]]:
    """Run once; return what is wrong, and the outcome."""
    problems: list[str] = []
    before = set(threading.enumerate())
    with unguarded_effects(run) as unguarded, watched_processes() as processes, _kill_at_exit(run):
        handle = _start(agent, args, run, trap)
        if not await _ends_in_time(handle, trap, within):
            where = [participant.describe() for participant in run.participants()]
            problems.append(f"still running {within:g} s after the stop: {', '.join(where)}")
            run.stop("kill")
        outcome = await handle.outcome()
        left = await _leftovers(before, processes)
    problems += [f"entered after the stop: {label}" for label in trap.after]
    problems += [f"went round the boundaries: {effect}" for effect in unguarded]
    if run.token.stopped and outcome.status is not Status.STOPPED and not (run.receipt and run.receipt.too_late):
        problems.append(f"ended {outcome.status}: {outcome.error!r}")
    return problems + left, outcome


@contextmanager
def _kill_at_exit(run: RunNode) -> Iterator[None]:
    """Kill a run that the block leaves running, because it gave up or was cancelled."""
    try:
        yield
    finally:
        if run.outcome is None:
            run.stop("kill", "the check has ended")


def _start(agent: Callable[..., Any], args: tuple[Any, ...], run: RunNode, trap: _StopAt) -> RunHandle[Any]:
    run.sink = trap
    return start(run, body_of(agent), args)


async def _ends_in_time(handle: RunHandle[Any], trap: _StopAt, within: float) -> bool:
    """Wait for the end: as long as it takes before the stop, ``within`` seconds after it."""
    while not trap._root.token.stopped and trap._root.outcome is None:  # noqa: ASYNC110 - on another thread, maybe
        await asyncio.sleep(0.001)
    try:
        async with asyncio.timeout(within):
            await handle.outcome()
    except TimeoutError:
        return False
    return True


async def _leftovers(before: set[threading.Thread], processes: Callable[[], list[str]]) -> list[str]:
    """Name the threads and processes that are still there after a moment; our own threads are not leftovers.

    That of a run may end a little later than the run: whether its code has ended is in the outcome.
    """
    deadline = asyncio.get_running_loop().time() + _LEFTOVER_SECONDS
    while True:
        new = [t.name for t in threading.enumerate() if t not in before and not t.name.startswith("stoppable")]
        leftovers = [f"left a thread running: {name}" for name in new]
        leftovers += [f"left a process running: {process}" for process in processes()]
        if not leftovers or asyncio.get_running_loop().time() > deadline:
            return leftovers
        await asyncio.sleep(0.01)
