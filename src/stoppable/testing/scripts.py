"""Agents as data: the same script is performed by a task, a thread or a process, and a probe sees what it does."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
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
class Check:
    """Call ``check()``."""


@dataclass(frozen=True, slots=True)
class ReturnIfStopping:
    """Ask ``should_stop()`` and return ``value`` if it says so."""

    value: object = None


@dataclass(frozen=True, slots=True)
class Swallow:
    """Perform the steps again and again, swallowing whatever they raise, as a bare ``except:`` does."""

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
class Partial:
    """Record what there is so far."""

    value: object


@dataclass(frozen=True, slots=True)
class Return:
    """Return a value."""

    value: object


Step: TypeAlias = (
    Effect | Rest | Check | ReturnIfStopping | Swallow | Finally | Shield | Child | Fail | Partial | Return
)


class _Returned(Exception):
    pass


class Probe(ABC):
    """What a test sees of a script, and how it lets it go on."""

    @property
    @abstractmethod
    def notes(self) -> list[str]:
        """What happened so far, in order."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Record that something happened."""

    @abstractmethod
    def release(self, *names: str) -> None:
        """Let the named steps go on, now and whenever they come again; all of them if none is named."""

    @abstractmethod
    def is_released(self, name: str) -> bool:
        """Return whether a step may go on."""

    async def seen(self, text: str) -> None:
        """Wait until something happened."""
        async with asyncio.timeout(10):
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


_ALL = "everything"


@dataclass(frozen=True, slots=True)
class _Wait:
    """Asks the performer to wait for the test."""

    name: str


@dataclass(frozen=True, slots=True)
class _Run:
    """Asks the performer for a child run."""

    steps: Sequence[Step]


_Script: TypeAlias = Generator[_Wait | _Run, None, None]


def _perform(steps: Sequence[Step], probe: Probe) -> _Script:
    for step in steps:
        yield from _perform_one(step, probe)


def _perform_one(step: Step, probe: Probe) -> _Script:  # noqa: C901 - one case per step
    match step:
        case Effect(name, kind):
            with stoppable.boundary(kind, name):
                probe.note(f"enter {name}")
                yield _Wait(name)
                probe.note(f"leave {name}")
        case Rest(name):
            probe.note(f"rest {name}")
            yield _Wait(name)
            probe.note(f"rested {name}")
        case Check():
            stoppable.check()
        case ReturnIfStopping(value):
            if stoppable.should_stop():
                raise _Returned(value)
        case Swallow(inner, times):
            for _ in range(times):
                try:
                    yield from _perform(inner, probe)
                except _Returned:
                    raise
                except BaseException as error:
                    probe.note(f"swallowed {type(error).__name__}")
        case Finally(inner, cleanup):
            try:
                yield from _perform(inner, probe)
            finally:
                yield from _perform(cleanup, probe)
        case Shield(seconds, inner):
            with stoppable.shielded(seconds):
                yield from _perform(inner, probe)
        case Child(inner):
            yield _Run(inner)
        case Fail(message):
            raise ValueError(message)
        case Partial(value):
            stoppable.set_partial(value)
        case Return(value):
            raise _Returned(value)


async def perform(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as an async agent."""
    script = _perform(steps, probe)
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
                case _Wait(name):
                    while not probe.is_released(name):  # noqa: ASYNC110 - by a test on another thread
                        await asyncio.sleep(0.001)
                case _Run(inner):
                    await stoppable.call(perform, inner, probe)
        except BaseException as caught:
            error = caught


def perform_blocking(steps: Sequence[Step], probe: Probe) -> Any:
    """Perform a script as a blocking agent."""
    script = _perform(steps, probe)
    error: BaseException | None = None
    never = threading.Event()
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
                case _Wait(name):
                    while not probe.is_released(name):
                        never.wait(0.001)
                case _Run(inner):
                    stoppable.agent(perform_blocking)(inner, probe)
        except BaseException as caught:
            error = caught
