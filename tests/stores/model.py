"""What must hold of stored runs: the contract in plain dicts, written without a look at how a store does it."""

from typing import Any

MODES = ("cooperative", "graceful", "immediate", "kill")
TERMINAL = ("completed", "failed", "stopped", "lost")

Run = dict[str, Any]


def harder(one: str | None, other: str | None) -> bool:
    return other is not None and (one is None or MODES.index(one) < MODES.index(other))


class Model:
    """Workers with their leases, runs with their stops, holds, and stops that wait for their run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.leases: dict[str, float] = {}
        self.closed: set[str] = set()
        self.fenced: set[str] = set()
        self.runs: dict[str, Run] = {}
        self.holds: dict[str, str] = {}  # the owner that each means
        # By the id of a run, or "key" and a key.
        self.waiting: dict[str | tuple[str, str], tuple[float, tuple[str, str]]] = {}
        self.answered: dict[str, str] = {}

    def workers(self) -> list[str]:
        return [*self.leases, *self.closed, *self.fenced]

    # Runs

    def over(self, name: str) -> bool:
        return self.runs[name]["status"] in TERMINAL

    def live(self) -> list[str]:
        return [name for name in self.runs if not self.over(name)]

    def family(self, name: str) -> list[str]:
        family = [name]
        for member in family:
            family += [child for child, run in self.runs.items() if run["parent"] == member]
        return family

    def add(
        self, name: str, parent: str | None, worker: str, owner: str | None, request: str, key: str | None = None
    ) -> None:
        stop = self.stop_before(name, parent, key)
        self.runs[name] = {
            "parent": parent,
            "worker": worker,
            "owner": owner,
            "request": request,
            "key": key,
            "status": "pending" if stop is None else "stopped",
            "stop": stop,  # its mode and its reason
            "acknowledged": None if stop is None else stop[0],
            "ended_by": None if stop is None else "born stopped",
        }

    def add_begun(self, name: str, parent: str, worker: str) -> None:
        """A child that its worker has begun already."""
        above = self.runs[parent]
        stop = above["stop"]
        self.runs[name] = {
            "status": "running" if stop is None else "stopping",
            "parent": parent,
            "worker": worker,
            "owner": None,
            "request": "request",
            "key": None,
            "stop": stop,
            "acknowledged": above["acknowledged"] if stop is not None and worker == above["worker"] else None,
            "ended_by": None,
        }

    def stop_before(self, name: str, parent: str | None, key: str | None) -> tuple[str, str] | None:
        """The stop that a run is born with; what waited for it or for the next run of its key waits no more."""
        if parent is not None and self.runs[parent]["stop"] is not None:
            return self.runs[parent]["stop"]
        if parent is not None and self.over(parent):
            return ("graceful", "its parent")
        first = None
        for address in (name, ("key", key)):
            until, stop = self.waiting.pop(address, (0.0, None))
            if stop is not None and until > self.now:
                first = stop if first is None else (stop[0] if harder(first[0], stop[0]) else first[0], first[1])
        return first

    def wait(self, address: str | tuple[str, str], mode: str, reason: str, seconds: float) -> float:
        """Let a stop wait for a run, and return until when."""
        until, stop = self.waiting.get(address, (0.0, None))
        if stop is None or until <= self.now:
            until, stop = 0.0, (mode, reason)
        elif harder(stop[0], mode):
            stop = (mode, stop[1])
        self.waiting[address] = (max(until, self.now + seconds), stop)
        return self.waiting[address][0]

    def topmost(self, names: list[str]) -> list[str]:
        """Those that are not below another one of them."""
        below = {member for name in names for member in self.family(name)[1:]}
        return [name for name in names if name not in below]

    def is_held(self, owner: str | None) -> bool:
        return owner in self.holds.values()

    # Stops

    def answer(self, name: str, mode: str) -> str:
        stop = self.runs[name]["stop"]
        if self.over(name):
            return "already_finished"
        if stop is None:
            return "accepted"
        return "escalated" if harder(stop[0], mode) else "already_stopping"

    def stop(self, name: str, mode: str, reason: str) -> set[str]:
        """Mark a subtree, and return whom that changed."""
        changed = set()
        for member in self.family(name):
            run = self.runs[member]
            mode_now, first = run["stop"] or (None, reason)
            if not self.over(member) and harder(mode_now, mode):
                run["stop"] = (mode, first)
                run["status"] = "stopping" if run["status"] == "running" else run["status"]
                changed.add(member)
        return changed

    def intents(self, worker: str) -> dict[str, tuple[str, str]]:
        """What a worker must be told with every heartbeat (I2)."""
        return {
            name: run["stop"]
            for name, run in self.runs.items()
            if run["worker"] == worker and not self.over(name) and run["stop"] is not None
            if harder(run["acknowledged"], run["stop"][0])
        }

    def acknowledge(self, name: str, mode: str) -> set[str]:
        """Note closed gates: the run's, and those that were stopped below it on the same worker; return whose."""
        worker = self.runs[name]["worker"]
        closed = set()
        for node in self.family(name):
            run = self.runs[node]
            if not self.over(node) and run["worker"] == worker and (node == name or run["stop"] is not None):
                run["acknowledged"] = mode if harder(run["acknowledged"], mode) else run["acknowledged"]
                closed.add(node)
        return closed

    # Ends

    def expired(self) -> set[str]:
        return {worker for worker, until in self.leases.items() if until < self.now}

    def reapable(self, *, expired: bool) -> dict[str, str]:
        """What becomes of whom when the runs of workers that are gone are ended."""
        ends = {}
        for name in self.live():
            run = self.runs[name]
            if run["worker"] in self.closed:
                ends[name] = "failed" if run["stop"] is None else "stopped"
            elif expired and run["worker"] in self.fenced | self.expired():
                ends[name] = "lost"
        return ends

    def end(self, name: str, status: str, by: str) -> None:
        assert not self.over(name)
        self.runs[name] |= {"status": status, "ended_by": by}

    def move(self, name: str, status: str) -> None:
        """A status event that a live worker sends."""
        if (self.runs[name]["status"], status) in {("pending", "running"), ("running", "stopping")}:
            self.runs[name]["status"] = status
