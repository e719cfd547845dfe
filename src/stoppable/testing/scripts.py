"""Agents as data: every kind of participant performs the same scripts, and a probe observes them.

``ParticipantContract`` says how a kind of participant starts a script; ``perform``, ``perform_blocking`` and
``perform_with`` execute one.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import stoppable


@dataclass(frozen=True, slots=True)
class Effect:
    """Enter a boundary and stay in it until the test releases it."""

    name: str
    kind: str = "tool"


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait outside any boundary until the test releases it."""

    name: str = "rest"


@dataclass(frozen=True, slots=True)
class Stubborn:
    """Wait until the test releases it; ignores every force and enters no boundary."""

    name: str = "stubborn"


@dataclass(frozen=True, slots=True)
class Check:
    """Call ``check()``."""


@dataclass(frozen=True, slots=True)
class ReturnIfStopping:
    """Ask ``should_stop()`` and return ``value`` if it says so."""

    value: object = None


@dataclass(frozen=True, slots=True)
class Swallow:
    """Perform the steps again and again; swallows everything they raise, like a bare ``except:``."""

    steps: Sequence[Step]
    times: int


@dataclass(frozen=True, slots=True)
class Finally:
    """Perform the steps, and the clean-up however they end."""

    steps: Sequence[Step]
    cleanup: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Shield:
    """Perform the steps in ``shielded(seconds)``."""

    seconds: float
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Child:
    """Perform the steps as a child run and wait for it."""

    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise a ValueError."""

    message: str = "broken"


@dataclass(frozen=True, slots=True)
class SetPartial:
    """Record what there is so far."""

    value: object


@dataclass(frozen=True, slots=True)
class Return:
    """Return a value."""

    value: object


Step: TypeAlias = (
    Effect
    | Rest
    | Stubborn
    | Check
    | ReturnIfStopping
    | Swallow
    | Finally
    | Shield
    | Child
    | Fail
    | SetPartial
    | Return
)


class _Returned(Exception):
    pass


class Probe(ABC):
    """Observes and controls a script from a test."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What happened so far, in order."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Record that something happened."""

    @abstractmethod
    def release(self, *names: str) -> None:
        """Let the named steps go on, now and later; all of them if none is named."""

    @abstractmethod
    def is_released(self, name: str) -> bool:
        """Return whether a step may go on."""

    async def seen(self, text: str) -> None:
        """Wait until something happened."""
        async with asyncio.timeout(30):
            while text not in self.notes:  # noqa: ASYNC110 - it happens on another thread, or in another process
                await asyncio.sleep(0.001)

    def entered(self) -> list[str]:
        """Return the names of the effects that were started, in order."""
        return [note.removeprefix("enter ") for note in self.notes if note.startswith("enter ")]


class LocalProbe(Probe):
    """A probe within one process, safe on every thread."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._released: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """What happened so far, in order."""
        return self._notes

    def note(self, text: str) -> None:
        """Record that something happened."""
        self._notes.append(text)

    def release(self, *names: str) -> None:
        """Let the named steps go on; all of them if none is named."""
        self._released.update(names or (_ALL,))

    def is_released(self, name: str) -> bool:
        """Return whether a step may go on."""
        return name in self._released or _ALL in self._released


class FileProbe(Probe):
    """A probe across processes: an append-only file of notes, and a file for every step that may go on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "notes"
        self._file.touch()

    @property
    def notes(self) -> list[str]:
        """What happened so far, in order."""
        return self._file.read_text().splitlines()

    def note(self, text: str) -> None:
        """Record that something happened."""
        with self._file.open("a") as file:
            file.write(f"{text}\n")

    def release(self, *names: str) -> None:
        """Let the named steps go on; all of them if none is named."""
        for name in names or (_ALL,):
            (self._folder / f"go {name}").touch()

    def is_released(self, name: str) -> bool:
        """Return whether a step may go on."""
        return any((self._folder / f"go {each}").exists() for each in (name, _ALL))

    def command(self, step: Effect | Stubborn) -> list[str]:
        """Return the command of a process that performs a step and records it."""
        is_stubborn = isinstance(step, Stubborn)
        script = f"trap '' TERM; {_SHELL}" if is_stubborn else _SHELL
        return ["sh", "-c", script, "sh", str(self._folder), "stubborn" if is_stubborn else "enter", step.name]


_ALL = "everything"
_SHELL = f"""\
echo "$2 $3" >> "$1/notes"
until [ -e "$1/go $3" ] || [ -e "$1/go {_ALL}" ]; do sleep 0.01; done
echo "leave $3" >> "$1/notes"
"""


@dataclass(frozen=True, slots=True)
class Wait:
    """Asks the performer to wait for the test."""

    name: str


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Asks the performer for a process that performs a step."""

    step: Effect | Stubborn


@dataclass(frozen=True, slots=True)
class RunChild:
    """Asks the performer for a child run."""

    steps: Sequence[Step]


Request: TypeAlias = Wait | RunCommand | RunChild
_Requests: TypeAlias = Generator[Request, None, None]


class _Script:
    """Performs steps; yields a request for each thing that a task, a thread and a process do differently."""

    def __init__(self, probe: Probe, *, in_commands: bool = False) -> None:
        self._probe = probe
        self._in_commands = in_commands

    def perform(self, steps: Sequence[Step]) -> _Requests:
        for step in steps:
            if self._in_commands and isinstance(step, Effect | Stubborn):
                yield RunCommand(step)
            else:
                yield from self._perform_one(step)

    def _perform_one(self, step: Step) -> _Requests:  # noqa: C901 - one case per step
        probe = self._probe
        match step:
            case Effect(name, kind):
                with stoppable.boundary(kind, name):
                    probe.note(f"enter {name}")
                    yield Wait(name)
                    probe.note(f"leave {name}")
            case Rest(name):
                probe.note(f"rest {name}")
                yield Wait(name)
                probe.note(f"rested {name}")
            case Stubborn(name):
                probe.note(f"stubborn {name}")
                for _ in range(3):  # a ladder cancels a task twice; what comes after that is the end of the test
                    yield from self._swallow([Rest(name)])
            case Check():
                stoppable.check()
            case ReturnIfStopping(value):
                if stoppable.should_stop():
                    raise _Returned(value)
            case Swallow(inner, times):
                for _ in range(times):
                    yield from self._swallow(inner)
            case Finally(inner, cleanup):
                try:
                    yield from self.perform(inner)
                finally:
                    yield from self.perform(cleanup)
            case Shield(seconds, inner):
                with stoppable.shielded(seconds):
                    yield from self.perform(inner)
            case Child(inner):
                yield RunChild(inner)
            case Fail(message):
                raise ValueError(message)
            case SetPartial(value):
                stoppable.set_partial(value)
            case Return(value):
                raise _Returned(value)

    def _swallow(self, steps: Sequence[Step]) -> _Requests:
        try:
            yield from self.perform(steps)
        except _Returned:
            raise
        except BaseException as error:
            self._probe.note(f"swallowed {type(error).__name__}")


async def perform(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as an async agent."""
    script = _Script(probe).perform(steps)
    error: BaseException | None = None
    while True:
        try:
            request = next(script) if error is None else script.throw(error)
        except StopIteration:
            return None
        except _Returned as returned:
            return returned.args[0]
        error = None
        try:
            match request:
                case Wait(name):
                    while not probe.is_released(name):  # noqa: ASYNC110 - by a test on another thread
                        await asyncio.sleep(0.001)
                case RunChild(inner):
                    await stoppable.call(perform, inner, probe)
                case RunCommand():
                    raise AssertionError("only for those that perform in commands")
        except BaseException as caught:
            error = caught


def perform_blocking(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent."""

    def answer(request: Request) -> None:
        match request:
            case Wait(name):
                wait_for(probe, name)
            case RunChild(inner):
                stoppable.agent(perform_blocking)(inner, probe)
            case RunCommand():
                raise AssertionError("only for those that perform in commands")

    return _perform_blocking(_Script(probe).perform(steps), answer)


def perform_with(steps: Sequence[Step], probe: Probe, answer: Callable[[Request], None]) -> Any:
    """Perform a script as a blocking agent whose effects are started by a function."""
    return _perform_blocking(_Script(probe, in_commands=True).perform(steps), answer)


def _perform_blocking(script: _Requests, answer: Callable[[Request], None]) -> Any:
    error: BaseException | None = None
    while True:
        try:
            request = next(script) if error is None else script.throw(error)
        except StopIteration:
            return None
        except _Returned as returned:
            return returned.args[0]
        error = None
        try:
            answer(request)
        except BaseException as caught:
            error = caught


def wait_for(probe: Probe, name: str) -> None:
    """Wait until the test releases a step."""
    never = threading.Event()
    while not probe.is_released(name):
        never.wait(0.001)


class ParticipantContract(ABC):
    """One kind of participant, as ``ParticipantSuite`` and the tests of the specification start it."""

    name: str
    strongest: str
    """The rung that always ends it; "lost" if none does."""
    described: str = ""
    """How the receipt of a lost run describes it, for a kind that no rung can end."""

    @abstractmethod
    async def start(self, steps: Sequence[Step], probe: Probe) -> stoppable.RunHandle[Any]:
        """Start a run that performs a script, executed by a participant of this kind."""

    def probe(self, folder: Path) -> Probe:  # noqa: ARG002 - for those that need one
        """Return a probe that its scripts can use."""
        return LocalProbe()

    def label(self, kind: str, name: str) -> str:
        """Return how an effect of a script is listed while it is in flight."""
        return f"{kind}:{name}"

    def __repr__(self) -> str:
        return self.name
