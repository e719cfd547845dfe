"""Runs an agent again and again, stops it at each of its boundaries in each mode, and reports what happened."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from stoppable._core.boundary import Boundary
from stoppable._core.node import RunNode, Sink
from stoppable._core.values import Policy, Rung, Status, seconds
from stoppable._engine.agent_functions import body_of
from stoppable._engine.agents import root_run, start
from stoppable._engine.executors import close_loop, new_loop
from stoppable._engine.instrumentation import user_code
from stoppable._engine.instrumentation.install import instrument
from stoppable.agent_check.observations import OutsideEffects, outside_effects, watched_processes
from stoppable.agent_check.report import MODES, ReportCard, Trial, doubtful_kinds, remedies_for

_DRY_SECONDS = 30.0
_LEFTOVER_SECONDS = 1.0
_CLOSING_SECONDS = 5.0
_TICK = 0.002


@dataclass(frozen=True, slots=True)
class _Place:
    """The n-th time that a run enters a boundary.

    Not its n-th boundary: a run may leave out what an earlier one has done for it, or take another order.
    """

    label: str
    time: int

    def __str__(self) -> str:
        return self.label if self.time == 1 else f"{self.label} #{self.time}"


class _Trap(Sink):
    """Stops its run at a place."""

    def __init__(self, root: RunNode, place: _Place | None, mode: str) -> None:
        self._root, self._place, self._mode = root, place, mode
        self._times: Counter[str] = Counter()
        self.places: list[_Place] = []
        self.is_reached = False

    def entered(self, run: RunNode, boundary: Boundary) -> None:
        """Count the boundary, and stop the run if this is the place."""
        if not run.closed:
            self._times[boundary.label] += 1
            here = _Place(boundary.label, self._times[boundary.label])
            self.places.append(here)
            if here == self._place:
                self.is_reached = True
                self._root.stop(self._mode, "stoppable check")


def check_agent(
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
    body = functools.partial(body_of(agent), *args, **(kwargs or {}))
    with _AgentUnderCheck(body, root_run(agent).name, within) as checked:
        dry = checked.run(None, "cooperative", after=None)
        if dry.has_failed:
            # Not left to the others, which may be stopped before they fail.
            checked.trials.append(dry.trial("its own end", "unstopped"))
        for mode in MODES:
            for place in dry.places[:most]:
                checked.trials.append(checked.run(place, mode, after=None).trial(str(place), mode))
            if not dry.places:
                checked.trials.append(checked.run(None, mode, after=dry.seconds / 2).trial("no boundary", mode))
    skipped = [] if len(dry.places) <= most else [f"of {len(dry.places)} boundaries, the first {most} were tried"]
    labels = [place.label for place in dry.places]
    return ReportCard(
        agent=checked.name,
        boundaries=tuple(labels),
        trials=tuple(checked.trials),
        rounds=tuple(checked.rounds),
        notes=(*skipped, *doubtful_kinds(labels), *checked.notes),
    )


class _LoopThread:
    """An event loop for one run after another, on a thread.

    All trials share it, because a client that the agent's module made belongs to the loop of its first call.
    """

    def __init__(self) -> None:
        self._loop = new_loop()
        self._task: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name="stoppable-check", daemon=True)
        self._thread.start()

    def perform(self, run: RunNode, body: Callable[[], Any]) -> None:
        """Start a run on the loop, without waiting for it."""

        async def execute() -> None:
            with contextlib.suppress(asyncio.CancelledError):  # the outcome says so
                await start(run, body, ()).outcome()

        def begin() -> None:
            self._task = asyncio.ensure_future(execute())  # referenced: a loop holds its tasks weakly

        self._loop.call_soon_threadsafe(begin)

    def answers(self) -> bool:
        """Return whether its last run left it free for another one."""
        reply = threading.Event()
        self._loop.call_soon_threadsafe(reply.set)
        return reply.wait(_LEFTOVER_SECONDS)

    def close(self) -> None:
        """End it; one that is blocked is left alone."""
        if self.answers():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSING_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                self._loop.run_forever()
                break
            except (KeyboardInterrupt, SystemExit):
                continue  # of the agent: the outcome says so
        close_loop(self._loop)


class _AgentUnderCheck:
    """An agent under check, and what all of its runs showed."""

    def __init__(self, body: Callable[[], Any], name: str, within: float) -> None:
        self.name = name
        self.trials: list[Trial] = []
        self.rounds: dict[str, bool] = {}
        self.notes: dict[str, bool] = {}
        self._body = body
        self._loop = _LoopThread()
        self._policy = Policy(grace=within, interrupt=0.1, cancel=1.0, kill=1.0, blind_grace=min(within, 2.0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    def run(self, place: _Place | None, mode: str, *, after: float | None) -> _Attempt:
        """Run it once; stop it at a place, or after so many seconds, or only when it takes too long."""
        if not self._loop.answers():
            self._loop = _LoopThread()
        run = RunNode(self.name, policy=self._policy)
        run.sink = trap = _Trap(run, place, mode)
        before = set(threading.enumerate())
        with ExitStack() as stack:
            effects = stack.enter_context(outside_effects(run))
            processes = stack.enter_context(watched_processes())
            attempt = _Attempt(run, trap)
            self._loop.perform(run, self._body)
            attempt.wait_for_end(mode, after)
            attempt.find_leftovers(before, processes)
        attempt.report_late(effects)
        self.rounds.update(effects.starts)
        self.notes.update((f"outside any boundary: {effect}", True) for effect in effects.before)
        self.notes.update((note, True) for note in attempt.notes)
        return attempt


class _Attempt:
    """One run of the agent."""

    def __init__(self, run: RunNode, trap: _Trap) -> None:
        self._run = run
        self._trap = trap
        self.places = trap.places
        self._is_timed = False
        self.seconds = 0.0
        self.notes: list[str] = []
        self._stopped_in = 0.0
        self._problems: list[str] = []

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        return self._run.status is Status.FAILED

    def report_late(self, effects: OutsideEffects) -> None:
        """Report its effects after the stop as problems, except clean-up."""
        self._problems += [f"effect after the stop: {effect}" for effect in effects.after]

    def wait_for_end(self, mode: str, after: float | None) -> None:
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
                self._is_timed = after is not None
                if after is None:
                    self.notes.append(f"it did not end by itself within {_DRY_SECONDS:g} s")
            tick.wait(_TICK)
        self.seconds = time.monotonic() - began
        if stopped_at is not None:
            self._stopped_in = time.monotonic() - stopped_at
        if not run.token.stopped and run.outcome.status is Status.FAILED:
            self._problems.append(f"it failed by itself: {run.outcome.error!r}")

    def find_leftovers(self, before: set[threading.Thread], processes: Callable[[], list[str]]) -> None:
        """Name the threads and processes that are still there after a moment, and kill the processes."""
        tick, deadline = threading.Event(), time.monotonic() + _LEFTOVER_SECONDS
        while True:
            new = [t for t in threading.enumerate() if t not in before and not t.name.startswith("stoppable")]
            users = [t for t in new if user_code.is_users_thread(t)]
            left_threads = [f"left a thread running: {t.name}" for t in users]
            alive = processes()
            if not (left_threads or alive) or time.monotonic() > deadline:
                break
            tick.wait(0.01)
        self.notes += [_thread_note(t) for t in new if t.is_alive() and t not in users and not self._is_abandoned(t)]
        if self._run.token.stopped:
            self._problems += [*left_threads, *(f"left a process running: {process}" for process in alive)]
        for process in alive:
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(process.split()[0]), signal.SIGKILL)

    def _is_abandoned(self, thread: threading.Thread) -> bool:
        """Return whether a thread may be what could not be ended, which is reported as such."""
        return self._run.status is Status.LOST and user_code.is_worker_of_pool(thread)

    def trial(self, at: str, mode: str) -> Trial:
        """Return the problems with its end."""
        outcome, receipt = self._run.outcome, self._run.receipt
        assert outcome is not None, "it has ended"
        problems = list(self._problems)
        if outcome.status is Status.LOST and receipt is not None:
            problems += [f"could not be ended: {node.name}" for node in receipt.entries if node.kind == "participant"]
        elif outcome.status is Status.FAILED and self._run.token.stopped:
            problems.append(f"failed: {outcome.error!r}")
        elif mode == "graceful" and outcome.rung is not None and outcome.rung > Rung.CANCEL:
            problems.append("had to be killed")
        rung = None if outcome.rung is None else str(outcome.rung)
        return Trial(
            at=at,
            mode=mode,
            status=outcome.status,
            rung=rung,
            seconds=self._stopped_in,
            reached=self._trap.is_reached or self._is_timed or mode not in MODES,
            problems=tuple(problems),
            remedies=remedies_for(problems),
        )


def _thread_note(thread: threading.Thread) -> str:
    name = re.sub(r"[-_]?\d+(?=[-_]|$)", "", thread.name)  # numbered, and then there would be a note for each trial
    # Whoever made the pool: its calls take part, its threads wait for the next one.
    if user_code.is_worker_of_pool(thread):
        return f"worker of a thread pool, alive after the run, which is fine: {name}"
    return f"thread of a library, which no stop waits for: {name}"
