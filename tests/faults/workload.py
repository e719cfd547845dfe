"""Clients that start runs and stop them over HTTP, each request on a replica chosen at random; and what must hold."""

import contextlib
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx

from stoppable.errors import RunNotFound, StoreError

AGENTS = ("tidy", "tidy", "tidy", "forever", "family", "blocking", "steps")
MODES = ("graceful", "graceful", "immediate", "kill")
REQUEST_SECONDS = 4.0  # a replica that is frozen answers nobody
ENDED_WITHIN = 60.0  # a lease, a ladder of 18 s, and a machine that does other things too


@dataclass(frozen=True)
class Stop:
    """A stop that was answered: with 202, or with 200 if the run was over so soon."""

    run: str
    worker: object
    """The replica that executes the run."""
    asked: object
    """The replica that answered."""
    marks: Path
    is_202: bool
    has_begun: bool
    """Whether its start was answered, and not only asked for; otherwise it is checked, and not counted."""


class Workload:
    """Clients that never rest while the block lasts."""

    def __init__(self, replicas, folder, seed, clients=4):
        self._replicas = replicas
        self._folder = folder
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._client, args=(number, random.Random(seed * 1000 + number)))
            for number in range(clients)
        ]
        self.answered = []
        self.counts = Counter()
        self._errors = []

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        for thread in self._threads:
            thread.join()
        with httpx.Client(timeout=ENDED_WITHIN) as client:  # nobody is disturbed now; what is left would go on for ever
            self._ask(client, self._replicas[0], "/stops", {"selector": {"all": True}})

    def next_stop(self, within=ENDED_WITHIN):
        """Wait for the next stop that is answered 202."""
        seen = len(self.answered)

        def found():
            return self._errors or next((stop for stop in self.answered[seen:] if stop.is_202), None)

        with self._changed:
            stop = self._changed.wait_for(found, within)
        assert stop and not self._errors, f"no stop is answered: {dict(self.counts)} {self._errors}"
        return stop

    @property
    def accepted(self):
        """How many stops of runs that were surely there were answered 202."""
        return sum(stop.is_202 and stop.has_begun for stop in self.answered)

    def _client(self, number, choices):
        try:
            with httpx.Client(timeout=REQUEST_SECONDS) as client:
                turn = 0
                while not self._over.is_set():
                    turn += 1
                    self._once(client, choices, f"{self._folder.name}-{number}-{turn}")
        except Exception as error:
            with self._changed:
                self._errors.append(error)
                self._changed.notify_all()

    def _once(self, client, choices, run):
        worker, agent = choices.choice(self._replicas), choices.choice(AGENTS)
        marks = self._folder / run
        body = {"agent": agent, "runId": run, "input": {"marks": str(marks)}}
        has_begun = self._ask(client, worker, "/runs", body) == 201
        self._over.wait(choices.choice((0.0, 0.02, 0.1)))
        path = f"/runs/{run}/stop" + ("" if has_begun else "?ifUnknown=wait")  # it may begin all the same
        body = {"mode": choices.choice(MODES), "reason": "a stop"}
        while not self._over.is_set():
            asked = choices.choice(self._replicas)
            status = self._ask(client, asked, path, body)
            if status in {200, 202}:
                with self._changed:
                    self.answered.append(Stop(run, worker, asked, marks, status == 202, has_begun))
                    self._changed.notify_all()
                return
            self._over.wait(0.05)

    def _ask(self, client, replica, path, body):
        """Return the status of the answer, or None if there was none."""
        url, status = replica.url, None
        if url is not None:  # it may be down or frozen all the same
            with contextlib.suppress(httpx.HTTPError):
                status = client.post(url + path, json=body).status_code
        self.counts[f"{'start' if path == '/runs' else 'stop'} {status}"] += 1
        assert status in {None, 200, 201, 202, 503}, f"{path} was answered {status}"
        return status


def check(store, stops):
    """Wait until every stop that was answered has ended its run, as docs/semantics.md says; return the fates of 202s.

    ``store`` only looks: a supervisor would also look after the runs of dead replicas, which is up to the others.
    """
    fates, deadline = Counter(), time.monotonic() + ENDED_WITHIN
    sizes = {}
    for stop in stops:
        record = _ended(store, stop, deadline)
        if record is None:
            continue
        if not stop.is_202 and record.stop is None:
            continue  # it was over before
        assert record.stop is not None, f"LOST: {stop.run} was answered, and its record has no stop: {record}"
        fate = record.status.value
        if fate in {"completed", "failed"}:
            assert record.receipt is not None and record.receipt.too_late, f"{fate} after a stop: {record}"
            fate += " first"
        fates[fate] += stop.is_202 and stop.has_begun
        if fate == "stopped":
            sizes[stop.marks] = _size(stop.marks)
    time.sleep(0.3)  # nothing tells of what does not happen
    for marks, size in sizes.items():
        assert _size(marks) == size, f"{marks.name} is stopped, and goes on"
    return fates


def _ended(store, stop, deadline):
    """Return the record of a run once it has ended, or None if its start was not answered and there is none."""
    while True:
        record = None
        try:
            record = store.get(stop.run).result(10)
            if record.over:
                return record
        except RunNotFound:
            if not stop.has_begun:
                return None
            raise
        except StoreError:
            pass  # it may be busy
        assert time.monotonic() < deadline, f"LOST: {stop.run} was answered and has not ended: {record}"
        time.sleep(0.02)


def _size(marks):
    return marks.stat().st_size if marks.exists() else 0
