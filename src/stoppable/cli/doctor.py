"""``stoppable doctor``: what Stop reaches on this machine, and what is installed."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import itertools
import json
import platform
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import typer

import stoppable
from stoppable import Event, Outcome, Policy, Receipt
from stoppable._extras import pip_install
from stoppable.cli import options
from stoppable.cli.exits import Exit, reports_errors
from stoppable.cli.text import safe

_HOUR = 3600
_POLICY = Policy(grace=0.2, interrupt=0.2, cancel=5.0, kill=10.0)
_TESTED = ((3, 11), (3, 13))


@reports_errors
def doctor(as_json: options.Json = False) -> None:
    """Say what Stop reaches on this machine, by trying it, and which extras are installed."""
    found = asyncio.run(_try_all())
    extras = list(_extras())
    problems = [*_system_problems(), *(one.problem for one in found if one.problem)]
    if as_json:
        report = {
            "stoppable": stoppable.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "stops": [dataclasses.asdict(one) for one in found],
            "extras": [dataclasses.asdict(one) for one in extras],
            "problems": problems,
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        for line in _lines(found, extras, problems):
            typer.echo(safe(line))
    raise typer.Exit(Exit.FAILED if problems else Exit.DONE)


def _lines(found: list[Trial], extras: list[Extra], problems: list[str]) -> Iterator[str]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield f"stoppable {stoppable.__version__}, Python {platform.python_version()}, {system}"
    yield "Stop reaches:"
    for trial in found:
        yield f"  {'FAIL' if trial.problem else 'ok':<4} {trial.what}: {trial.status} after {trial.seconds:.2f} s"
    yield "Extras:"
    for extra in extras:
        yield f"  {'ok' if extra.is_there else '-':<4} {extra.name}: {extra.told}"
    yield from (f"problem: {problem}" for problem in problems)
    yield "problems found" if problems else "no problems"


def _system_problems() -> Iterator[str]:
    if platform.system() != "Linux":
        yield "processes can only be followed on Linux: elsewhere, agents in tasks and agent processes stop"
    version = tuple(int(part) for part in platform.python_version_tuple()[:2])
    if not _TESTED[0] <= version <= _TESTED[1]:
        oldest, newest = (".".join(map(str, one)) for one in _TESTED)
        yield f"Python {'.'.join(map(str, version))} is not tested: use {oldest} to {newest}"


# What Stop reaches


@dataclasses.dataclass(frozen=True)
class Trial:
    """One agent that was stopped."""

    what: str
    status: str
    seconds: float
    problem: str | None


async def waits() -> None:
    """Wait in a task."""
    stoppable.emit("begun")
    await asyncio.sleep(_HOUR)


def runs_a_command() -> None:
    """Wait, on a thread, for a command that has started another one."""
    with _shell(f"sleep {_HOUR} & sleep {_HOUR}") as command:
        stoppable.emit("begun")
        command.wait()


def never_looks() -> None:
    """Compute without end."""
    stoppable.emit("begun")
    for _ in itertools.repeat(None):
        pass


def leaves_a_command() -> None:
    """Start a command that leaves its session and its parent, as daemons do."""
    with _shell(f"setsid sleep {_HOUR} >/dev/null 2>&1 &") as command:
        command.wait()
    stoppable.emit("begun")
    threading.Event().wait(_HOUR)


def _shell(line: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sh", "-c", line], stdin=subprocess.DEVNULL)  # noqa: S603 - our own lines


_Isolation: TypeAlias = Literal["auto", "process"]

_TRIALS: Mapping[str, tuple[Callable[[], Any], _Isolation]] = {
    "a task": (waits, "auto"),
    "a thread and the commands it has started": (runs_a_command, "auto"),
    "an agent process that computes": (never_looks, "process"),
    "an agent process and a command that has left it": (leaves_a_command, "process"),
}


async def _try_all() -> list[Trial]:
    stoppable.instrument()
    async with stoppable.Supervisor() as supervisor:
        return [await _try(supervisor, what, *how) for what, how in _TRIALS.items()]


async def _try(supervisor: stoppable.Supervisor, what: str, agent: Callable[[], Any], isolation: _Isolation) -> Trial:
    handle = await supervisor.start(agent, policy=_POLICY, isolation=isolation)
    async for event in handle.events():
        if _has_begun(event):
            break
    began = time.monotonic()
    await handle.stop("immediate")
    outcome = await handle.outcome()
    seconds = time.monotonic() - began
    return Trial(what, str(outcome.status), seconds, _problem_of(what, outcome, await handle.receipt()))


def _has_begun(event: Event) -> bool:
    return event.type in {"progress", "done"}


def _problem_of(what: str, outcome: Outcome[Any], receipt: Receipt | None) -> str | None:
    if outcome.status == "stopped":
        return None
    if outcome.error is not None:
        return f"{what} failed: {outcome.error}"
    entries = () if receipt is None else receipt.entries
    left = [f"{entry.name} ({entry.fate})" for entry in entries if entry.kind != "run"]
    return f"{what} did not stop: {', '.join(left) or outcome.status}"


# What is installed


@dataclasses.dataclass(frozen=True)
class Extra:
    """What one extra needs, and whether it is installed."""

    name: str
    is_there: bool
    told: str


_NEED = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:>=\s*([\w.]+))?[^;]*;.*extra == ['\"]([\w-]+)")
"""A package, the oldest version that is allowed, and the extra that needs it."""


def _extras() -> Iterator[Extra]:
    needs: dict[str, list[tuple[str, str]]] = {}
    for text in importlib.metadata.requires("stoppable") or ():
        if (need := _NEED.match(text)) and need[1] != "stoppable" and _is_for_this_python(text):
            needs.setdefault(need[3], []).append((need[1], need[2] or "0"))
    for extra, packages in sorted(needs.items()):
        versions = {package: _version(package) for package, _ in packages}
        lacking = [package for package, version in versions.items() if version is None]
        old = [
            f"{name} {versions[name]} is older than {least}"
            for name, least in packages
            if _is_older(versions[name], least)
        ]
        if lacking:
            yield Extra(extra, is_there=False, told=f"{', '.join(lacking)} not installed: {pip_install(extra)}")
        elif old:
            yield Extra(extra, is_there=False, told=f"{', '.join(old)}: {pip_install(extra, upgrade=True)}")
        else:
            yield Extra(extra, is_there=True, told=", ".join(f"{name} {version}" for name, version in versions.items()))


def _is_for_this_python(need: str) -> bool:
    marker = re.search(r"python_version >= ['\"]([\d.]+)['\"]", need)
    return marker is None or not _is_older(platform.python_version(), marker[1])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_older(version: str | None, least: str) -> bool:
    return version is not None and _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[: version.count(".") + 1]]
