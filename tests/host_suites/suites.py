"""The suites, and how one is run in an environment: CPython's by its own runner, those of packages by pytest."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
FILE_SECONDS = 900
"""Until a file of CPython's tests counts as hung."""
SUITE_SECONDS = 2400
"""Until a suite counts as hung."""
END_SECONDS = 60
"""Until one that was told to end is killed."""
WITHOUT_END = "*.WithThreadsTestPool.test_terminate"
"""A test of multiprocessing that waits for five minutes if a thread is fast; later Pythons have mended it."""

PASSED, SKIPPED, FAILED, NOT_RUN = "passed", "skipped", "failed", "not run"


class Missing(Exception):
    """A suite is not there for a Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run of a suite, or of some of its files, said."""

    states: dict[str, str]
    """PASSED, SKIPPED or FAILED, by the test.

    A file of CPython is listed like a test. It has failed if that is not the fault of one of its tests: it crashed,
    took too long, or left a thread or a process behind.
    """
    files: dict[str, str | None]
    """The file of each test."""
    seconds: float
    log: Path
    reasons: dict[str, str] = field(default_factory=dict)
    """The first line of what a test failed with, where the runner tells."""
    deselected: int = 0
    """How many tests were left out on purpose."""


@dataclass(frozen=True)
class Python:
    """The interpreter of an environment."""

    path: Path

    @cached_property
    def version(self) -> str:
        """The whole version, such as 3.11.7."""
        return self.say("import platform; print(platform.python_version())")

    @cached_property
    def tests(self) -> Path:
        """The folder of CPython's tests."""
        return Path(self.say("import sysconfig; print(sysconfig.get_path('stdlib'))"), "test")

    @cached_property
    def has_tests(self) -> bool:
        """Whether CPython's tests are installed; Debian has them in a package of their own, or not at all."""
        return (self.tests / "test_threading.py").exists()

    @property
    def environment(self) -> Path:
        """The folder of the environment."""
        return self.path.parents[1]

    def say(self, code: str) -> str:
        """Return what a line of Python prints."""
        return subprocess.run([self.path, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _perform(command: Sequence[object], log: Path, *, instrumented: bool, **options: object) -> float:
    """Run a command to its end, or until it takes too long; return the seconds that it took."""
    mode = "instrumented" if instrumented else "plain"
    environment = {**os.environ, "PYTHONPATH": f"{HERE / 'site'}{os.pathsep}{SOURCE}", "STOPPABLE_HOST_SUITE": mode}
    environment |= options.pop("environment", {})
    begin = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
        started: list[int] = []
        for seconds in (SUITE_SECONDS, END_SECONDS):
            try:
                process.wait(seconds)
                break
            except subprocess.TimeoutExpired:
                started += _descendants(process.pid)
                process.send_signal(signal.SIGINT)  # told to end, CPython's runner ends its own processes
        else:
            os.killpg(process.pid, signal.SIGKILL)  # the signal came before the runner was ready for it
        process.wait()
        for pidfd in started:  # the signal may also have come before the runner had noted what it started
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
    return time.monotonic() - begin


def _descendants(pid: int) -> Iterator[int]:
    """Yield pidfds of what a process has started, and theirs: those of CPython's runner have their own sessions."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in map(int, children.read_text().split()):
                yield os.pidfd_open(child)
                yield from _descendants(child)


def _state(case: ET.Element) -> str:
    kinds = {child.tag for child in case}
    return FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED


def _reason(case: ET.Element) -> str:
    """Return the first line of what a test failed with."""
    messages = [child.attrib.get("message", "") for child in case if child.tag in {"failure", "error"}]
    return next((message.strip().splitlines()[0] for message in messages if message.strip()), "")


def _cases(report: Path) -> Iterable[ET.Element]:
    """Return the tests of a report; none if the runner was killed before it wrote one.

    Those that failed are the last: a test that is listed twice counts as failed if it failed once.
    """
    cases = ET.parse(report).iter("testcase") if report.exists() else ()
    return sorted(cases, key=lambda case: _state(case) == FAILED)


class CPython:
    """One of the suites in CPython's package ``test``."""

    _LINE = re.compile(r"\[ *\d+/\d+(?:/\d+)?\] (\S+) (\w+)")

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, python: Python, scratch: Path, *, instrumented: bool, files: Iterable[str] = ()) -> Result:
        """Run the suite, or some of its files."""
        report, log = scratch / "report.xml", scratch / "log.txt"
        folder = self._borrow(python, scratch) if self._own(python) is None else None
        names = sorted(files) or [self.name if folder is None else folder.name]
        place = [] if folder is None else ["--testdir", folder.parent]
        # One process for each file, one at a time: two suites are run beside each other.
        options = ["-j1", f"--timeout={FILE_SECONDS}", "--fail-env-changed", f"--junit-xml={report}"]
        command = [python.path, "-m", "test", *options, f"--ignore={WITHOUT_END}", *place, *names]
        seconds = _perform(command, log, instrumented=instrumented)
        states = {case.attrib["name"]: _state(case) for case in _cases(report)}
        found = self._LINE.findall(log.read_text(errors="replace"))
        whole = {name: word if word in {PASSED, SKIPPED} else FAILED for name, word in found}
        owners = {test: _file_of(test, whole) for test in {*states, *whole}}
        blamed = {owners[test] for test, state in states.items() if state == FAILED}
        states |= {file: PASSED if file in blamed else state for file, state in whole.items()}
        return Result(states=states, files=owners, seconds=seconds, log=log)

    def note(self, python: Python) -> str:
        """Say where the tests are from, if they are not those of this Python."""
        if self._own(python) is not None:
            return ""
        return (
            f"{self.name} on Python {python.version}, whose installation lacks it: of {_minor(self._nearest(python))}"
        )

    def _own(self, python: Python) -> Path | None:
        return next(self._in(python.tests), None)

    def _in(self, tests: Path) -> Iterator[Path]:
        return (path for path in (tests / self.name, tests / f"{self.name}.py") if path.exists())

    def _nearest(self, python: Python) -> Path:
        """Return the suite of the installed Python whose version is nearest; some installations lack new folders."""
        if not python.has_tests:
            raise Missing(f"{python.path} has no tests of CPython")
        places = [Path("/usr/lib"), *(Path.home() / ".pyenv/versions").glob("*/lib")]
        found = [path for place in places for tests in place.glob("python3.*/test") for path in self._in(tests)]
        own = int(python.version.split(".")[1])
        if not found:
            raise Missing(f"no installed Python has {self.name}")
        return min(found, key=lambda path: (abs(int(_minor(path)[2:]) - own), path))

    def _borrow(self, python: Python, scratch: Path) -> Path:
        """Link the suite of another Python, by a name that the runner does not take for a folder of its own."""
        suite = self._nearest(python)
        link = scratch / "borrowed" / f"{self.name}_of_{_minor(suite).replace('.', '_')}{suite.suffix}"
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(suite)
        return link.with_suffix("")


def _minor(suite: Path) -> str:
    return suite.parents[1].name.removeprefix("python")


def _file_of(test: str, files: Collection[str]) -> str | None:
    """Return the file of a test of CPython; None for what has no dotted name, such as setUpModule."""
    return max((file for file in files if f".{file}." in f".{test}."), key=len, default=None)


class Package:
    """The tests in the source distribution of a package.

    With a plugin of pytest, it is the plugin that is switched on, instead of instrument() in every interpreter.
    """

    def __init__(
        self,
        name: str,
        *,
        tests: str = "tests",
        options: Sequence[str] = (),
        plugin: Path | None = None,
        **environment: str,
    ) -> None:
        self.name = name
        self._tests = tests
        self._options = options
        self._plugin = plugin
        self._environment = environment if plugin is None else {"PYTHONPATH": str(plugin.parent), **environment}

    def run(self, python: Python, scratch: Path, *, instrumented: bool, files: Iterable[str] = ()) -> Result:
        """Run the suite, or some of its files."""
        folder = python.environment / self.name
        if not (folder / self._tests).is_dir():
            raise Missing(f"the source distribution of {self.name} has no tests, or is not in {folder}")
        report, log = scratch / "report.xml", scratch / "log.txt"
        options = ["-q", "-pno:cacheprovider", "-mnot network", "-ojunit_family=xunit1", f"--junit-xml={report}"]
        options += ["-p", self._plugin.stem] if self._plugin is not None and instrumented else []
        seconds = _perform(
            [python.path, "-m", "pytest", *options, *self._options, *(sorted(files) or [self._tests])],
            log,
            instrumented=instrumented and self._plugin is None,
            cwd=folder,
            environment=self._environment,
        )
        cases = {f"{case.attrib['classname']}.{case.attrib['name']}": case for case in _cases(report)}
        return Result(
            states={test: _state(case) for test, case in cases.items()},
            files={test: case.attrib.get("file") for test, case in cases.items()},
            seconds=seconds,
            log=log,
            reasons={test: _reason(case) for test, case in cases.items() if _state(case) == FAILED},
            deselected=sum(map(int, re.findall(r"\b(\d+) deselected", log.read_text(errors="replace")[-1000:]))),
        )

    def note(self, python: Python) -> str:
        """Name the version."""
        version = python.say(f"import importlib.metadata as packages; print(packages.version('{self.name}'))")
        return f"{self.name} {version} on Python {python.version}: its source distribution"


Suite = CPython | Package
# The longest first: two are run beside each other.
SUITES: tuple[Suite, ...] = (
    CPython("test_multiprocessing_spawn"),
    CPython("test_multiprocessing_forkserver"),
    CPython("test_multiprocessing_fork"),
    CPython("test_concurrent_futures"),
    CPython("test_asyncio"),
    CPython("test_subprocess"),
    CPython("test_threading"),
    Package("anyio", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),  # as its own configuration of tox says
    Package("requests"),
    Package("httpx"),
)
