"""Stops one variant of a subject again and again, in a process that is the parent of all that the subject starts.

`python -m stopbench.trial SPEC` prints an observation for each trial; SPEC is the JSON of a `Spec`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stopbench import processes
from stopbench.model_server import ModelServer
from stopbench.observation import NextTurn, Observation
from stopbench.scenarios import FIRST, NEXT, SCENARIOS, SUBPROCESS, Scenario
from stopbench.tools import EffectLog

IMPORT_SECONDS, START_SECONDS = 600.0, 240.0
"""In which a framework is imported, and the moment of the scenario comes; only what is broken takes so long."""
END_SECONDS = 20.0
"""After which a turn that was stopped counts as one that has no end."""
WATCH_SECONDS = 1.5
"""How long the world is watched after the end: longer than a tool that goes on takes."""
SETTLE_SECONDS = 0.25
"""After the end: processes that still run then are left."""
_TICK, _LONGEST_TICK = 0.005, 0.02
gaps: list[float] = []
"""The time between two looks, which is long if the machine is busy with other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """Which variant of which subject is stopped."""

    python: str
    """The interpreter of its environment."""
    file: str
    variant: str
    sub_agent: str | None
    """The argument of the tool `helper`, or None."""
    final_tool: str | None = None
    """The tool with which the model ends a turn, or None."""
    trials: tuple[tuple[str, str], ...]
    """Scenarios, each with its seed."""


class Zygote:
    """The process that has imported the framework and forks one for each trial."""

    def __init__(self, spec: Spec, noise: Path) -> None:
        ours, theirs = socket.socketpair()
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        program = str(Path(__file__).with_name("child.py"))
        with noise.open("w") as file, theirs:
            self._process = subprocess.Popen(
                [spec.python, program, str(theirs.fileno()), spec.file, spec.variant],
                env=env,
                cwd=noise.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                pass_fds=[theirs.fileno()],
            )
        ours.settimeout(IMPORT_SECONDS)
        self._noise = noise
        self._socket = ours
        self._lines = ours.makefile("rw")
        self.pid = self._process.pid
        self.is_alone = self._answer()["is_alone"]
        """Whether it has no threads: with them, it can be forked only once."""

    def fork(self, **task: Any) -> int:
        """Start the process of a trial, and return its pid."""
        print(json.dumps(task), file=self._lines, flush=True)
        return int(self._answer()["pid"])

    def _answer(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise RuntimeError(f"the subject could not be imported: {self._noise.read_text()[-500:]}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait(10)
        self._lines.close()
        self._socket.close()


class Child:
    """The process of a trial, seen from outside."""

    def __init__(self, zygote: Zygote, folder: Path, **task: Any) -> None:
        path = folder / "socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(START_SECONDS)
            self.pid = zygote.fork(socket=str(path), noise=str(folder / "noise"), **task)
            self._socket, _ = listener.accept()
        self._socket.settimeout(None)
        self._reports: list[dict[str, Any]] = []
        self.has_died = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile() as lines:
            for line in lines:
                self._reports.append(json.loads(line))
        self.has_died = True

    def send(self, **command: Any) -> None:
        """Give it a command; one that has died is told nothing."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(command).encode() + b"\n")

    def reports(self, event: str) -> list[dict[str, Any]]:
        """Return what it has reported of one kind."""
        return [report for report in list(self._reports) if report["event"] == event]


class Trial:
    """Starts the subject, waits for the moment, presses Stop, and watches."""

    def __init__(
        self, zygote: Zygote, scenario: Scenario, variant: str, seed: str, folder: Path, server: ModelServer
    ) -> None:
        self._scenario = scenario
        self._count = scenario.count(seed)
        self._variant = variant
        self._server = server
        self._log = EffectLog(folder / "effects")
        self._noise = folder / "noise"
        self._zygote = zygote
        self.seen = Observation(scenario=scenario.name)
        task = {"url": server.url, "log": str(self._log.path), "delegates": scenario.delegates}
        self._child = Child(zygote, folder, **task)

    def carry_out(self) -> Observation:
        """Return what was seen."""
        scenario, child, seen = self._scenario, self._child, self.seen
        if not wait(lambda: bool(child.reports("ready")) or child.has_died, START_SECONDS) or child.has_died:
            return self._failed("the subject did not start")
        seen.versions = child.reports("ready")[0]["versions"]
        helpers = set(processes.descendants()) - {child.pid, self._zygote.pid}
        if scenario.moment == "start":
            seen.pressed = time.monotonic()
        child.send(do="ask", text=FIRST, streamed=scenario.is_streamed, stop=scenario.moment == "start")
        if scenario.moment != "start":
            wait(lambda: self._is_reached() or self._has_ended(), START_SECONDS)
            if not self._is_reached():
                return self._failed(f"the moment of the stop never came: {self._said() or 'nothing happened'}")
            self._press(helpers)
        gaps.clear()
        wait(self._has_ended, END_SECONDS)
        self._note_end()
        if self._scenario is SUBPROCESS:
            wait(lambda: not processes.commands(), SETTLE_SECONDS)
            seen.left = processes.commands()
        if seen.reported is not None:
            wait(lambda: False, WATCH_SECONDS)
        seen.longest_gap = round(max(gaps, default=0.0), 3)
        seen.requests, seen.answered = list(self._server.requests), self._server.answered
        seen.events = self._log.events()
        if seen.reported is not None and not child.has_died:
            seen.next_turn = self._ask_again()
        return seen

    def _is_reached(self) -> bool:
        match self._scenario.moment:
            case "answer":
                return self._server.answered is not None
            case "token":
                return len(self._server.tokens()) >= self._count
            case _:
                return sum(event.kind == "effect" for event in self._log.events()) >= self._count

    def _has_ended(self) -> bool:
        return bool(self._child.reports("ended")) or self._child.has_died

    def _press(self, helpers: set[int]) -> None:
        self.seen.pressed = time.monotonic()
        if self._scenario.ends_server:
            for pid in helpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return
        self._child.send(do="stop")
        if self._scenario.presses > 1:
            wait(lambda: self._has_ended() or self._is_cleaning_up(), 1.0)
            self._child.send(do="stop")

    def _is_cleaning_up(self) -> bool:
        return any(event.kind == "cleaning" for event in self._log.events())

    def _note_end(self) -> None:
        seen = self.seen
        if ended := self._child.reports("ended"):
            seen.reported, seen.state, seen.error = ended[0]["at"], ended[0]["state"], ended[0]["error"]
            if ended[0]["knows_stoppable"] != (self._variant != "plain"):
                seen.failure = "the plain subject knows stoppable, or the other does not"
        elif self._child.has_died:
            seen.error = f"the process ended: {self._said()}"
        seen.called = next((each["at"] for each in self._child.reports("stop called")), None)
        seen.stop_error = next((each["error"] for each in self._child.reports("stop returned") if each["error"]), "")

    def _ask_again(self) -> NextTurn:
        """Let the user write again."""
        before = len(self._server.requests)
        turn = NextTurn()
        self._child.send(do="ask", text=NEXT, streamed=False, stop=False)
        turn.ended = wait(lambda: len(self._child.reports("ended")) > 1 or self._child.has_died, END_SECONDS)
        requests = self._server.requests[before:]
        mine = [each for each in requests if NEXT in json.dumps(each.messages)]
        turn.messages = mine[0].messages if mine else None
        turn.refused = any(each.ending == "refused" for each in mine)
        if len(ended := self._child.reports("ended")) > 1:
            turn.error = "" if ended[1]["state"] == "completed" else ended[1]["error"] or ended[1]["state"]
        elif self._child.has_died:
            turn.error = "the process ended"
        return turn

    def _failed(self, why: str) -> Observation:
        self.seen.failure = f"{why}: {self._noise.read_text()[-300:].strip()}"
        return self.seen

    def _said(self) -> str:
        ended = self._child.reports("ended")
        return f"{ended[0]['state']} {ended[0]['error']}" if ended else self._noise.read_text()[-300:].strip()


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until something is true; return False if it is not in time.

    Time in which the machine is busy with other things counts little, since the subject had no turn either.
    """
    lived, before = 0.0, time.monotonic()
    while not condition():
        if lived > seconds:
            return False
        time.sleep(_TICK)
        now = time.monotonic()
        gaps.append(now - before)
        lived += min(now - before, _LONGEST_TICK)
        before = now
    return True


def observe(spec: Spec) -> Iterator[Observation]:
    """Carry out trials in this process, one after the other, and leave nothing behind."""
    processes.adopt_orphans()
    zygote: Zygote | None = None
    with tempfile.TemporaryDirectory() as home:
        try:
            for name, seed in spec.trials:
                try:
                    zygote = zygote or Zygote(spec, Path(home) / "noise")
                    seen = carry_out(spec, zygote, name, seed)
                except Exception as error:
                    seen = Observation(scenario=name, failure=f"{type(error).__name__}: {error}"[-500:])
                seen.sub_agent = spec.sub_agent is not None
                yield seen
                if zygote is not None and (seen.failure or not zygote.is_alone):
                    zygote.close()
                    zygote = None
        finally:
            processes.kill_descendants(spare=())


def carry_out(spec: Spec, zygote: Zygote, name: str, seed: str) -> Observation:
    """Carry out one trial."""
    scenario = SCENARIOS[name]
    with tempfile.TemporaryDirectory() as folder, ModelServer(scenario, spec.sub_agent, spec.final_tool) as server:
        try:
            return Trial(zygote, scenario, spec.variant, seed, Path(folder), server).carry_out()
        finally:
            processes.kill_descendants(spare=(zygote.pid,))


def start(spec: Spec) -> Iterator[Observation]:
    """Carry out trials in a process of their own, and yield what was seen as it comes."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-m", "stopbench.trial", json.dumps(asdict(spec))]
    left = dict.fromkeys(spec.trials)
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line, trial in zip(process.stdout, spec.trials, strict=False):
            del left[trial]
            yield Observation.from_json(json.loads(line))
    for name, _ in left:
        yield Observation(scenario=name, failure=f"the harness ended with {process.returncode}")


def main() -> None:
    """Do what the docstring of the module says."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left behind then either
    value = json.loads(sys.argv[1])
    spec = Spec(**{**value, "trials": tuple(map(tuple, value["trials"]))})
    for seen in observe(spec):
        print(json.dumps(seen.as_json()), flush=True)


if __name__ == "__main__":
    main()
