"""The report card of an agent: whether it stops, at each of its boundaries and in each mode."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode
from stoppable._core.policy import Policy, seconds
from stoppable._core.sink import Sink
from stoppable._core.state import Rung, Status
from stoppable._engine.agent_functions import body_of
from stoppable._engine.agents import root_run, start
from stoppable._engine.loops import run_in_new_loop
from stoppable._engine.plain import whose
from stoppable._engine.plain.install import instrument
from stoppable.testing.leftovers import watched_processes
from stoppable.testing.rounds import Rounds, rounds_of

MODES = ("graceful", "immediate", "kill")
_DRY_SECONDS = 30.0
_LEFTOVER_SECONDS = 1.0
_TICK = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One stopped run of the agent, or one that failed by itself, and what was wrong with its end."""

    at: str
    mode: str
    status: str
    rung: str | None
    seconds: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCard:
    """The results of stopping an agent at each of its boundaries."""

    agent: str
    boundaries: tuple[str, ...]
    trials: tuple[Trial, ...]
    rounds: tuple[str, ...]
    """What it starts in ways that no stop can follow, with file and line."""
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no problem was found."""
        return not self.rounds and not any(trial.problems for trial in self.trials)


class _Trap(Sink):
    """Stops its run when it enters the n-th boundary."""

    def __init__(self, root: RunNode, number: int | None, mode: str) -> None:
        self._root, self._number, self._mode = root, number, mode
        self.seen: list[str] = []

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Count it."""
        if not run.closed:
            self.seen.append(boundary.label)
            if self._number == len(self.seen):
                self._root.stop(self._mode, "stoppable check")


def report_card(
    agent: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    within: float = 2.0,
    most: int = 10,
) -> ReportCard:
    """Run an agent once to its end, then again and again, stopping it at each of its boundaries in each mode.

    An agent without boundaries is stopped halfway through. ``within`` is the grace, ``most`` the number of boundaries
    that are tried. Every run has the agent's real effects. Calls ``instrument()``.
    """
    seconds(within, "within")
    instrument()
    checked = _Checked(functools.partial(body_of(agent), *args, **(kwargs or {})), root_run(agent).name, within)
    dry = checked.run(None, "cooperative", after=None)
    if dry.has_failed:
        # Not left to the others, which may be stopped before they fail.
        checked.trials.append(dry.trial("its own end", "unstopped"))
    places: list[tuple[str, int | None]] = [(label, number) for number, label in enumerate(dry.seen[:most], 1)]
    for mode in MODES:
        for label, number in places or [("no boundary", None)]:
            after = dry.seconds / 2 if number is None else None
            checked.trials.append(checked.run(number, mode, after=after).trial(label, mode))
    skipped = [] if len(dry.seen) <= most else [f"of {len(dry.seen)} boundaries, the first {most} were tried"]
    return ReportCard(
        agent=checked.name,
        boundaries=tuple(dry.seen),
        trials=tuple(checked.trials),
        rounds=tuple(checked.rounds),
        notes=(*skipped, *checked.notes),
    )


class _Checked:
    """An agent under check, and what all of its runs showed."""

    def __init__(self, body: Callable[[], Any], name: str, within: float) -> None:
        self.name = name
        self.trials: list[Trial] = []
        self.rounds: dict[str, bool] = {}
        self.notes: dict[str, bool] = {}
        self._body = body
        self._policy = Policy(grace=within, interrupt=0.1, cancel=1.0, kill=1.0, blind_grace=min(within, 2.0))

    def run(self, number: int | None, mode: str, *, after: float | None) -> _Attempt:
        """Run it once; stop it at a boundary, or after so many seconds, or only when it takes too long."""
        run = RunNode(self.name, policy=self._policy)
        run.sink = trap = _Trap(run, number, mode)
        before = set(threading.enumerate())
        with ExitStack() as stack:
            rounds = stack.enter_context(rounds_of(run))
            processes = stack.enter_context(watched_processes())
            attempt = _Attempt(run, trap)
            threading.Thread(target=self._perform, args=(run,), name="stoppable-check", daemon=True).start()
            attempt.see_to_its_end(mode, after)
            attempt.look_for_leftovers(before, processes)
        attempt.note(rounds)
        self.rounds.update(rounds.starts)
        self.notes.update((f"outside any boundary: {effect}", True) for effect in rounds.before)
        self.notes.update((note, True) for note in attempt.notes)
        return attempt

    def _perform(self, run: RunNode) -> None:
        async def execute() -> None:
            await start(run, self._body, ()).outcome()

        with contextlib.suppress(asyncio.CancelledError, KeyboardInterrupt, SystemExit):  # the outcome says so
            run_in_new_loop(execute)


class _Attempt:
    """One run of the agent."""

    def __init__(self, run: RunNode, trap: _Trap) -> None:
        self._run = run
        self.seen = trap.seen
        self.seconds = 0.0
        self.notes: list[str] = []
        self._stopped_in = 0.0
        self._problems: list[str] = []

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        return self._run.status is Status.FAILED

    def note(self, rounds: Rounds) -> None:
        """Report its effects after the stop as problems, except clean-up."""
        self._problems += [f"effect after the stop: {effect}" for effect in rounds.after]

    def see_to_its_end(self, mode: str, after: float | None) -> None:
        """Wait until it has ended, and stop it when it is due."""
        run, tick = self._run, threading.Event()
        began = time.monotonic()
        stopped_at = None
        while run.outcome is None:
            now = time.monotonic()
            if stopped_at is None and run.token.stopped:
                stopped_at = now
            elif stopped_at is None and now - began > (_DRY_SECONDS if after is None else after):
                run.stop("kill" if after is None else mode, "stoppable check")
                if after is None:
                    self.notes.append(f"it did not end by itself within {_DRY_SECONDS:g} s")
            tick.wait(_TICK)
        self.seconds = time.monotonic() - began
        if stopped_at is not None:
            self._stopped_in = time.monotonic() - stopped_at
        if not run.token.stopped and run.outcome.status is Status.FAILED:
            self._problems.append(f"it failed by itself: {run.outcome.error!r}")

    def look_for_leftovers(self, before: set[threading.Thread], processes: Callable[[], list[str]]) -> None:
        """Name the threads and processes that are still there after a moment, and kill the processes."""
        tick, deadline = threading.Event(), time.monotonic() + _LEFTOVER_SECONDS
        while True:
            new = [t for t in threading.enumerate() if t not in before and not t.name.startswith("stoppable")]
            left = [f"left a thread running: {t.name}" for t in new if whose.is_users_thread(t)]
            found = processes()
            if not (left or found) or time.monotonic() > deadline:
                break
            tick.wait(0.01)
        self.notes += [f"thread of a library, which no stop waits for: {t.name}" for t in new if t.is_alive()]
        if self._run.token.stopped:
            self._problems += [*left, *(f"left a process running: {process}" for process in found)]
        for process in found:
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(process.split()[0]), signal.SIGKILL)

    def trial(self, at: str, mode: str) -> Trial:
        """Return the problems with its end."""
        outcome, receipt = self._run.outcome, self._run.receipt
        assert outcome is not None, "it has ended"
        problems = list(self._problems)
        if outcome.status is Status.LOST and receipt is not None:
            problems += [f"could not be ended: {node.name}" for node in receipt.nodes if node.kind == "participant"]
        elif outcome.status is Status.FAILED and self._run.token.stopped:
            problems.append(f"failed: {outcome.error!r}")
        elif mode == "graceful" and outcome.rung is not None and outcome.rung > Rung.CANCEL:
            problems.append("had to be killed")
        rung = None if outcome.rung is None else str(outcome.rung)
        return Trial(
            at=at, mode=mode, status=outcome.status, rung=rung, seconds=self._stopped_in, problems=tuple(problems)
        )
