"""Starts, stops, kills and freezes at random for minutes, and checks the invariants I1–I9 all the while.

    python tests/faults/soak.py --seconds 300 --seed 7

The seed is printed and replays the same choices; how the processes interleave is the machine's.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.faults.conftest import ReceiptEntry

from stoppable import sync
from stoppable.errors import StoppableError, StoreError
from stoppable.stores.sqlite import SqliteStore

TTL = 3.0
GRACE = 10 + 1 + 5 + 2  # the whole ladder of a graceful stop
SLACK = 20  # a machine that does other things too
AGENTS = ("forever", "steps", "fails", "family", "blocking", "in_worker")
NODES = 3


@dataclass
class Known:
    """What the soak itself knows of a run."""

    node: Worker
    agent: str
    marks: Path
    stopped_at: float | None = None
    ended: str | None = None


@dataclass
class Worker:
    """A node, and what was done to it."""

    node: ReceiptEntry
    was_harmed: bool = False
    frozen_at: float | None = None
    runs: list[str] = field(default_factory=list)


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._path = folder / "runs.db"
        self._runs: dict[str, Known] = {}
        self._live: list[str] = []
        self._workers = [self._worker() for _ in range(NODES)]
        self.done: Counter[str] = Counter()

    def _worker(self) -> Worker:
        return Worker(ReceiptEntry(self._path, TTL))

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        report_at = 0.0
        sizes: list[int] = []
        with sync.Supervisor(SqliteStore(self._path), ttl=TTL) as supervisor:
            try:
                while time.monotonic() < end:
                    self._act(supervisor)
                    self._check(supervisor)
                    if time.monotonic() > report_at:
                        report_at = time.monotonic() + 10
                        sizes.append(_resident(os.getpid()))
                        print(f"{end - time.monotonic():5.0f} s left  {sizes[-1]:,} kB  {dict(self.done)}", flush=True)
                self._settle(supervisor)
            finally:
                for worker in self._workers:
                    worker.node.end()
        _check_flat(sizes)

    # What is done

    def _act(self, supervisor: sync.Supervisor) -> None:
        acts = ["start"] * 8 + ["stop"] * 6 + ["stop again"] * 2 + ["kill", "freeze", "thaw", "thaw", "bulk"]
        act = self._random.choice(acts)
        worker = self._random.choice(self._workers)
        match act:
            case "start" if worker.frozen_at is None and len(self._live) < 60:
                self._start(worker)
            case "stop" | "stop again" if self._live:
                self._stop(supervisor, self._random.choice(self._live))
            case "kill" if self._random.random() < 0.2:
                worker.was_harmed = True
                worker.node.end()
                self._workers[self._workers.index(worker)] = self._worker()
            case "freeze" if worker.frozen_at is None and self._random.random() < 0.2:
                worker.was_harmed, worker.frozen_at = True, time.monotonic()
                worker.node.freeze(supervisor)
            case "thaw" if worker.frozen_at is not None and self._random.random() < 0.5:
                worker.frozen_at = None
                worker.node.signal(signal.SIGCONT)
            case "bulk" if self._random.random() < 0.1:
                owner = f"owner-{self._random.randrange(3)}"
                for receipt in supervisor.stop_where(owner=owner, reason="bulk"):
                    if receipt.run_id in self._runs:
                        self._noted(receipt.run_id)
            case _:
                time.sleep(0.005)
                return
        self.done[act] += 1

    def _start(self, worker: Worker) -> None:
        agent = self._random.choice(AGENTS)
        marks = self._folder / f"marks-{len(self._runs)}"
        run = worker.node.start(agent, marks, owner=f"owner-{self._random.randrange(3)}")
        self._runs[run] = Known(node=worker, agent=agent, marks=marks)
        self._live.append(run)

    def _stop(self, supervisor: sync.Supervisor, run: str) -> None:
        mode = self._random.choice(("graceful", "graceful", "immediate", "kill"))
        first = supervisor.stop(run, mode, actor="soak")
        again = supervisor.stop(run, mode, actor="soak")
        assert again.answer in {"already_stopping", "already_finished"}, (first, again)  # I8
        assert again.reason == first.reason or first.answer == "already_finished", (first, again)
        self._noted(run)

    def _noted(self, run: str) -> None:
        known = self._runs[run]
        known.stopped_at = known.stopped_at or time.monotonic()

    # What must hold

    def _check(self, supervisor: sync.Supervisor) -> None:
        for run in self._random.sample(self._live, min(5, len(self._live))):
            known, record = self._runs[run], supervisor.get(run)
            if not record.over:
                late = known.stopped_at is not None and time.monotonic() - known.stopped_at > TTL + GRACE + SLACK
                assert not late, f"I2: {known.agent} {record}"
                continue
            self._live.remove(run)
            known.ended = record.status
            self.done[record.status.value] += 1
            if not known.node.was_harmed:
                assert record.status != "lost", f"I9: {record}"
                expected = {"steps": "completed", "fails": "failed"}.get(known.agent)
                if known.stopped_at is None:
                    assert record.status == expected, f"I6: {known.agent} {record}"

    def _settle(self, supervisor: sync.Supervisor) -> None:
        """Stop everything, and look at each run and all its events once more."""
        for worker in self._workers:
            if worker.frozen_at is not None:
                worker.node.signal(signal.SIGCONT)
        supervisor.stop_where(all=True, reason="the end")
        deadline = time.monotonic() + TTL + GRACE + SLACK
        while any(not supervisor.get(run).over for run in self._runs):
            assert time.monotonic() < deadline, "I2: not all runs have ended"
            time.sleep(0.05)
        sizes = {run: _size(known.marks) for run, known in self._runs.items()}
        time.sleep(0.5)
        for run, known in self._runs.items():
            tree = supervisor.tree(run)
            assert known.ended in {None, tree[0].status}, f"I1: {known.ended} became {tree[0].status}"
            if tree[0].status != "lost":
                assert _size(known.marks) == sizes[run], f"I3: {known.agent} {tree[0]} still works"
                assert all(record.over for record in tree), f"I5: {tree}"
            seqs = [event.seq for event in supervisor._core.store.read(run, 0, 100_000).result()]
            assert seqs == list(range(1, len(seqs) + 1)), f"I7: {seqs}"
            types = [event.type for event in supervisor._core.store.read(run, 0, 100_000).result()]
            assert types.count("done") == 1, f"I1: {types}"
            assert set(types[types.index("done") + 1 :]) <= {"late"}, f"I4: {types}"


def _size(marks: Path) -> int:
    return marks.stat().st_size if marks.exists() else 0


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _check_flat(sizes: list[int]) -> None:
    if len(sizes) >= 12:  # two minutes: the first half warms up
        early, late = max(sizes[len(sizes) // 3 : len(sizes) // 2]), max(sizes[-len(sizes) // 4 :])
        assert late < early * 1.15 + 4096, f"memory grows: {sizes}"
        print(f"memory is flat: {early:,} kB, later {late:,} kB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="stoppable-soak-") as folder:
        soak = Soak(Path(folder), seed)
        try:
            soak.run(options.seconds)
        except (AssertionError, StoreError, StoppableError):
            print(f"failed; replay with --seed {seed}", flush=True)
            raise
        print(f"all invariants held: {len(soak._runs)} runs, {dict(soak.done)}")


if __name__ == "__main__":
    main()
