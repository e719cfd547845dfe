"""What must hold of a tree of runs: the contract in plain dicts, written without a look at how the core does it."""

import math
from typing import Any

MODES = ("cooperative", "graceful", "immediate", "kill")
RUNGS = ("signal", "interrupt", "cancel", "kill", "lost")
LADDER: dict[str, dict[str, float]] = {
    "cooperative": {},
    "graceful": {"interrupt": 10, "cancel": 11, "kill": 16, "lost": 18},
    "immediate": {"interrupt": 0, "cancel": 0, "kill": 5, "lost": 7},
    "kill": {"interrupt": 0, "cancel": 0, "kill": 0, "lost": 2},
}
BLIND_GRACE = 2
COARSE = 0.25  # how exactly it is known when a run last looked
BLIND = {"interrupt": BLIND_GRACE, "cancel": BLIND_GRACE, "kill": 7, "lost": 9}
"""Of a graceful stop of a run that has not looked for longer than its blind grace."""
TERMINAL = {"completed", "failed", "stopped", "lost"}
TABLE = {
    "pending": {"running", "stopped", "lost"},
    "running": {"stopping", "completed", "failed", "lost"},
    "stopping": TERMINAL,
    **{status: set() for status in TERMINAL},
}

Run = dict[str, Any]
Stop = dict[str, Any]
Frame = dict[str, Any]


def ladder(stop: Stop) -> dict[str, float]:
    return BLIND if stop["is_blind"] else LADDER[stop["mode"]]


def may_become(status: str) -> set[str]:
    """Where a run may stand after a step that may hold several transitions."""
    reached = {status}
    for _ in TABLE:
        reached |= {follower for one in reached for follower in TABLE[one]}
    return reached


def describe(reason: Any) -> tuple[str, str, str | None]:
    return (str(reason.kind), reason.message, reason.actor)


class Model:
    """The runs, the actors that execute them, and what is open."""

    def __init__(self) -> None:
        self.now = 0.0
        self.runs: dict[str, Run] = {}
        self.actors: dict[str, dict[str, Any]] = {}
        self.open: dict[str, str] = {}  # the label of each open boundary, and its run
        self.finished: set[str] = set()  # labels of boundaries that were left without an exception
        self.hooks: list[dict[str, Any]] = []
        self.left_shields: set[int] = set()

    # Runs

    def add_run(self, name: str, parent: str | None) -> None:
        if parent is not None:
            self.look(parent)
        is_born_stopped = parent is not None and self.stopped(parent)
        self.runs[name] = {
            "parent": parent,
            "status": "pending",
            "outcome": None,
            "begun": False,
            "looked_at": -math.inf,
            "stops": list(self.runs[parent]["stops"]) if is_born_stopped else [],  # the first one first
            "reasons": (),
            "is_target": False,
            "delivered": False,
            "rung": self.runs[parent]["rung"] if is_born_stopped else "signal",
            "ended": None,  # (value, error)
            "partial": None,
            "seen_in_flight": set(),  # every boundary of its subtree that may have been open at a stop that reached it
            "entered_after": set(),
            "final_receipt": None,
        }

    def terminal(self, name: str) -> bool:
        return self.runs[name]["status"] in TERMINAL

    def roots(self) -> list[str]:
        return [name for name, run in self.runs.items() if run["parent"] is None]

    def stopped(self, name: str) -> bool:
        return bool(self.runs[name]["stops"])

    def family(self, name: str) -> list[str]:
        """The run and everything it started, however deep, whatever became of those in between."""
        family = [name]
        for member in family:
            family += [child for child, run in self.runs.items() if run["parent"] == member]
        return family

    def lineage(self, name: str | None) -> list[str]:
        lineage = []
        while name is not None:
            lineage.append(name)
            name = self.runs[name]["parent"]
        return lineage

    def unfinished_children(self, name: str) -> list[str]:
        return [child for child, run in self.runs.items() if run["parent"] == name and not self.terminal(child)]

    # Stops

    def answer(self, name: str, mode: str) -> str:
        if self.terminal(name):
            return "already_finished"
        if not self.stopped(name):
            return "accepted"
        return "escalated" if MODES.index(mode) > MODES.index(self.mode(name)) else "already_stopping"

    def mode(self, name: str) -> str:
        return max((stop["mode"] for stop in self.runs[name]["stops"]), key=MODES.index)

    def look(self, name: str) -> None:
        """Note that a run met a boundary, check, shield or hook, or started a child: it gets its grace."""
        self.runs[name]["looked_at"] = self.now
        above = [stop for member in self.lineage(name) for stop in self.runs[member]["stops"]]
        for stop in above:
            is_told = name in stop["leftovers"] or any(own is stop for own in self.runs[name]["stops"])
            if is_told and self.now < stop["at"] + BLIND_GRACE and not self.terminal(stop["target"]):
                stop["is_blind"] = False

    def stop(self, name: str, mode: str, reason: tuple[str, str, str | None]) -> None:
        answer = self.answer(name, mode)
        if answer == "already_finished":
            return
        self.runs[name]["is_target"] = True
        self.runs[name]["seen_in_flight"] |= self.open_in(name, vanished=True)
        if answer != "already_stopping":
            must, may = self.is_blind(name, mode, surely=True), self.is_blind(name, mode, surely=False)
            stop = {"at": self.now, "mode": mode, "reason": reason, "target": name}
            stop |= {"is_blind": must, "was_blind": may, "leftovers": ()}
            for member in self.family(name):
                if not self.terminal(member):
                    self.runs[member]["stops"].append(stop)
                    self.runs[member]["seen_in_flight"] |= self.open_in(member, vanished=True)

    def is_blind(self, name: str, mode: str, *, surely: bool) -> bool:
        """Return whether nothing below a run would notice a stop that waits for it.

        ``surely`` counts what a stop may find or not: what a vanished actor was inside, and runs that have ended.
        """
        if mode != "graceful" or not self.runs[name]["begun"] or self.open_in(name, vanished=surely):
            return False
        live = [member for member in self.family(name) if not self.terminal(member)]
        if any(hook["run"] in live and hook["moment"] != "end" and not hook["calls"] for hook in self.hooks):
            return False
        lookers = self.family(name) if surely else live
        return all(self.runs[member]["looked_at"] < self.now - BLIND_GRACE - COARSE for member in lookers)

    def settle_blindness(self, name: str, is_blind: bool, reached: set[str]) -> None:
        """Take over what the last stop found: whether it saw what a vanished actor was inside is not known.

        Nor is it known which runs that are over it has reached, because something of them was left behind: when their
        code looks, the code around them does.
        """
        stop = self.runs[name]["stops"][-1]
        stop["leftovers"] = {member for member in self.family(name) if self.terminal(member)} & reached
        assert stop["is_blind"] <= is_blind <= stop["was_blind"], "a run is blind if it would not notice the stop"
        stop["is_blind"] = stop["was_blind"] = is_blind

    def deliver(self, name: str) -> None:
        run = self.runs[name]
        if run["stops"] and run["ended"] is None and not self.terminal(name):
            run["delivered"] = True

    def rungs(self, name: str) -> list[tuple[float, str]]:
        """When which rung is due."""
        stops = self.runs[name]["stops"]
        return [(stop["at"] + after, rung) for stop in stops for rung, after in ladder(stop).items()]

    def climb(self, names: list[str]) -> None:
        """Climb every rung that is due by now, for runs that were not over when it was; a higher one is a delivery."""
        for name in names:
            run = self.runs[name]
            highest = max([run["rung"], *(rung for at, rung in self.rungs(name) if at <= self.now)], key=RUNGS.index)
            if highest != run["rung"]:
                run["rung"] = highest
                self.deliver(name)

    def end(self, name: str, result: object, error: BaseException | None) -> None:
        if self.runs[name]["ended"] is None and not self.terminal(name):
            self.runs[name]["ended"] = (result, error)

    def record(self, name: str, text: str, *, replaces: bool) -> None:
        as_of_stop = self.runs[name]["partial"]
        self.runs[name]["partial"] = text if replaces or as_of_stop is None else as_of_stop + text

    def reason(self, name: str) -> tuple[str, str, str | None] | None:
        stops = self.runs[name]["stops"]
        return stops[0]["reason"] if stops else None

    def share_a_stop(self, one: str, other: str) -> bool:
        return any(a is b for a in self.runs[one]["stops"] for b in self.runs[other]["stops"])

    def unfinished(self) -> list[str]:
        return [name for name in self.runs if not self.terminal(name)]

    # Actors

    def add_actor(self, name: str, base: Frame | None, made_for: str | None) -> None:
        self.actors[name] = {
            "stack": [] if base is None else [base],
            "made_for": made_for,
            "joined": set(),
            "late": set(),
            "alive": True,
            "vanished": False,  # it died, and nobody was told
        }

    def scope(self, actor: str) -> Frame | None:
        """The innermost run or shield that the actor's code is in."""
        return next((frame for frame in reversed(self.actors[actor]["stack"]) if frame["kind"] != "boundary"), None)

    def closed(self, frame: Frame | None) -> bool:
        """Whether a check in this scope raises."""
        if frame is None:
            return False
        if self.terminal(frame["run"]):
            return True  # a finished run's gate is closed too, for what its shields left behind as well
        return self.stopped(frame["run"]) and not self.is_shielded(frame)

    def is_shielded(self, frame: Frame) -> bool:
        """Whether any shield that the code was started in is open: not left, within its time, and before KILL."""
        ends = [until for shield, until in frame["shields"].items() if shield not in self.left_shields]
        return not self.terminal(frame["run"]) and self.now < min([max(ends, default=0), *self.kills_at(frame["run"])])

    def kills_at(self, name: str) -> list[float]:
        return [at for at, rung in self.rungs(name) if rung == "kill"]

    def join(self, actor: str) -> None:
        """Take part: whoever met a boundary or check of the run, or was told to stop; out of reach after the end."""
        frame = self.scope(actor)
        if frame is not None and not self.executes(actor, frame["run"]):
            self.actors[actor]["late" if self.terminal(frame["run"]) else "joined"].add(frame["run"])

    def executes(self, actor: str, name: str) -> bool:
        frames = self.actors[actor]["stack"]
        return any(frame["kind"] == "run" and frame["run"] == name for frame in frames) or (
            name in self.actors[actor]["joined"]
        )

    def crew(self, name: str, *, vanished: bool = False) -> list[str]:
        """The actors that execute a part of a run and are alive, or are gone without a word."""
        key = "vanished" if vanished else "alive"
        return [actor for actor, record in self.actors.items() if record[key] and self.executes(actor, name)]

    def family_crew(self, name: str, *, vanished: bool = False) -> list[str]:
        return [actor for member in self.family(name) for actor in self.crew(member, vanished=vanished)]

    def crews(self, names: list[str]) -> dict[str, tuple[str, list[str]]]:
        return {name: (self.runs[name]["rung"], self.crew(name)) for name in names}

    # Boundaries

    def open_in(self, name: str, *, vanished: bool = False) -> set[str]:
        """Return what is open below a run; not in a run that is over and executed by nobody any more.

        With ``vanished``, also what somebody was inside who is gone without a word: a stop may find it open or not.
        """
        is_executed = lambda run: self.crew(run) or (vanished and self.crew(run, vanished=True))  # noqa: E731
        reached = {run for run in self.family(name) if not self.terminal(run) or is_executed(run)}
        return {label for label, run in self.open.items() if run in reached}

    def enter(self, label: str, name: str) -> None:
        self.open[label] = name
        if self.stopped(name):
            for member in self.lineage(name):
                if self.stopped(member):
                    self.runs[member]["entered_after"].add(label)

    def leave(self, label: str, *, finished: bool) -> None:
        run = self.open.pop(label)
        if finished and not self.terminal(run):  # a final receipt has said abandoned
            self.finished.add(label)

    # What must hold

    def expected_status(self, name: str) -> set[str]:
        """The statuses that are true of a run now."""
        run = self.runs[name]
        if run["ended"] is not None and not run["delivered"]:
            return {"completed" if run["ended"][1] is None else "failed"}
        if run["rung"] == "lost":
            # G6; it may have ended before the deadline, and then as a stopped run.
            return {"stopped", "lost"} if self.is_known_dead(name) else {"lost"}
        if not run["begun"]:
            return {"pending"} | ({"stopped"} if run["stops"] else set())
        if not run["stops"]:
            return {"running"}
        if run["ended"] is None:
            return {"stopping"}
        below = [member for member in self.family(name) if member != name]
        if not all(self.terminal(member) for member in below):
            return {"stopping"}
        if any(
            self.crew(member) for member in (name, *below) if self.runs[member]["status"] != "lost" or member == name
        ):
            return {"stopping"}
        # Whoever is gone without a word counts as alive until the next rung.
        unnoticed = {"stopping"} if self.family_crew(name, vanished=True) else set()
        if self.family_crew(name):
            return {"lost"} | unnoticed
        # Whoever joined a run that was over may count as alive or not.
        joined = {run for actor in self.actors.values() if actor["alive"] for run in actor["late"] & set(below)}
        unsure = {"lost" if self.runs[run]["status"] == "lost" else "stopping" for run in joined}
        return {"stopped"} | unsure | unnoticed

    def is_known_dead(self, name: str) -> bool:
        below = [member for member in self.family(name) if member != name]
        return not self.family_crew(name) and all(self.terminal(member) for member in below)
