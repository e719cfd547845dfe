"""Runs the public A2A conformance suites (a2a-tck) on three servers: the plain SDK, the adapter, ``stoppable serve``.

What passes on the plain SDK must pass with stoppable too, or be in ``ON_PURPOSE`` with its reason. The suites come from
a clone of their repository, which has a branch for each protocol:

    python -m tests.adapters.a2a.upstream CLONE ENVIRONMENT
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.host_suites.comparison import worse
from tests.host_suites.report import machine
from tests.host_suites.suites import FAILED, PASSED, SKIPPED, Package, Python, Result

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PAGE = ROOT / "bench/results/a2a-conformance.md"
HOW = "say TCK=<clone of https://github.com/a2aproject/a2a-tck>, with its branches 1.0-dev and 0.3.x"
START_SECONDS = 300
END_SECONDS = 60
TEST_SECONDS = "--timeout=150"

BRANCHES = {"1.0": "1.0-dev", "0.3": "0.3.x"}
PLAIN, ADAPTER, SERVE = "plain SDK", "own server with the adapter", "`stoppable serve`"
SERVERS = (PLAIN, ADAPTER, SERVE)

_REPEATED = "a repeated cancel gets the canceled task, not an error"
_BY_ID = "an agent does not see the id of a message, by which the suite asks for this"
_NO_QUESTIONS = "the task of an agent ends, where the suite expects one that waits for the next message"
ON_PURPOSE = {
    (ADAPTER, "test_task_cancel_state_handling"): _REPEATED,
    (ADAPTER, "test_same_error_handling_task_not_cancelable"): f"{_REPEATED}, without which it skips itself",
    (SERVE, "test_agent_card_validates_against_schema"): "its card is for clients of 0.3 too, unless they ask for 1.0",
    (SERVE, "TestFileArtifact"): _BY_ID,
    (SERVE, "TestFileUrlArtifact"): _BY_ID,
    (SERVE, "TestDataArtifact"): _BY_ID,
    (SERVE, "TestMessageResponse"): "every message is a run, and so a task",
    (SERVE, "test_tasks_get_with_history_length"): "an ended task is read from its run, which has no history",
    (SERVE, "test_core_method_mapping_compliance"): _NO_QUESTIONS,
    (SERVE, "test_message_send_continue_task"): _NO_QUESTIONS,
    (SERVE, "test_message_send_continue_with_contextid"): _NO_QUESTIONS,
    (SERVE, "test_partial_update_recovery"): _NO_QUESTIONS,
    (SERVE, "test_task_cancel_state_handling"): _NO_QUESTIONS,
    (SERVE, "test_task_history_length"): _NO_QUESTIONS,
    (SERVE, "test_tasks_cancel_valid"): _NO_QUESTIONS,
}
"""Why tests, by a part of their names, do not pass with stoppable."""

HEAD = """# The public A2A conformance suites, plain and with stoppable

Written by `make test-a2a-conformance TCK=<clone>`, with the suites of https://github.com/a2aproject/a2a-tck for
protocol 1.0 and 0.3, over JSON-RPC, REST and gRPC. Each is run against three servers: the same executor with the
handler of the SDK and with that of the adapter (`tests/adapters/a2a/system_under_test.py`), and an agent of
`stoppable serve` (`tests/adapters/a2a/conformance_agent.py`). "Skipped" includes what the suite expects to fail. A test
that passes on the plain SDK and fails with stoppable is repeated with its file on both, and the target fails if it does
so again.
"""


@dataclass(kw_only=True)
class Comparison:
    """A suite on the three servers."""

    protocol: str
    commit: str
    results: dict[str, Result]
    defects: list[str] = field(default_factory=list)
    on_purpose: dict[str, set[str]] = field(default_factory=dict)
    """Tests, by where and why they do not pass."""
    flakes: list[str] = field(default_factory=list)


def main() -> None:
    """Compare the servers, write the page, and fail if a test is worse with stoppable."""
    if len(sys.argv) != 3:
        sys.exit(f"THE CONFORMANCE WAS NOT TESTED: {HOW}")
    clone, environment = Path(sys.argv[1]), Path(sys.argv[2]).absolute()
    facts = machine("a2a-sdk", "grpcio", "protobuf")
    commits = {protocol: bring(clone, branch, environment) for protocol, branch in BRANCHES.items()}
    logs = Path(tempfile.mkdtemp(prefix="a2a-conformance-"))
    with ThreadPoolExecutor(len(BRANCHES)) as pool:
        comparisons = list(pool.map(lambda item: compare(*item, perform_in(environment, logs)), commits.items()))
    PAGE.write_text(page(facts, comparisons), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    if any(each.defects or not each.results[PLAIN].states for each in comparisons):
        sys.exit(f"stoppable broke tests, or none was run; the logs are in {logs}")
    shutil.rmtree(logs)


def bring(clone: Path, branch: str, environment: Path) -> str:
    """Unpack a branch into the folder of the environment and install what it needs; return its commit."""
    for name in (f"origin/{branch}", branch):
        search = _git(clone, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)
        if search.returncode == 0:
            break
    else:
        sys.exit(f"THE CONFORMANCE WAS NOT TESTED: {clone} has no branch {branch}: {HOW}")
    commit, folder = search.stdout.decode().strip(), environment / branch
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(_git(clone, "archive", commit).stdout)) as files:
        files.extractall(folder, filter="data")
    install = [environment / "bin/uv", "pip", "install", "-q", "-p", environment / "bin/python", "pytest-timeout"]
    subprocess.run([*install, "-r", folder / "pyproject.toml"], check=True)
    return commit[:7]


def _git(clone: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", clone, *words], check=check, stdout=subprocess.PIPE)


# The servers


def command_of(server: str, protocol: str) -> list[str]:
    """Return the command that serves, and prints its address."""
    if server == SERVE:
        over_grpc = ["--a2a-grpc-port", "0"] if protocol == "1.0" else []
        return ["stoppable", "serve", "tests.adapters.a2a.conformance_agent", "--port", "0", *over_grpc]
    return ["tests.adapters.a2a.system_under_test", "--protocol", protocol, *(["--plain"] if server == PLAIN else [])]


@contextlib.contextmanager
def running(server: str, protocol: str, log: Path) -> Iterator[str]:
    """Start a server on free ports, yield its address, and end it."""
    with log.open("w") as output:
        command = [sys.executable, "-W", "ignore", "-m", *command_of(server, protocol)]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return match[0]
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    raise RuntimeError(f"the server did not start: {log.read_text()[-2000:]}")


# The suites


def run(protocol: str, server: str, environment: Path, scratch: Path, files: Iterable[str] = ()) -> Result:
    """Run a suite, or some of its files, against a server."""
    scratch.mkdir(parents=True)
    with running(server, protocol, scratch / "server.txt") as url:
        if protocol == "1.0":
            folder, options = "tests/compatibility", [f"--sut-host={url}"]
        else:
            folder, options = "tests", [f"--sut-url={url}", "--test-scope=all", "--ignore=tests/unit"]
        suite = Package(BRANCHES[protocol], tests=folder, options=[TEST_SECONDS, *options], PYTHONPATH="")
        return suite.run(Python(environment / "bin/python"), scratch, instrumented=False, files=files)


Perform = Callable[[str, str, str, Iterable[str]], Result]
"""Runs a suite: the protocol, the server, a name for the logs, and the files, if not all."""


def perform_in(environment: Path, logs: Path) -> Perform:
    """Return a function that runs suites with an environment, and keeps their logs."""

    def perform(protocol: str, server: str, name: str, files: Iterable[str]) -> Result:
        return run(protocol, server, environment, logs / protocol / f"{SERVERS.index(server)}-{name}", files)

    return perform


def compare(protocol: str, commit: str, perform: Perform) -> Comparison:
    """Run a suite against each server, and repeat what is worse with stoppable."""
    results = {server: perform(protocol, server, "all", ()) for server in SERVERS}
    comparison = Comparison(protocol=protocol, commit=commit, results=results)
    for server in (ADAPTER, SERVE):
        suspects = suspects_of(comparison.results[PLAIN], comparison.results[server], server)
        unexplained = {test for test in suspects if reason_of(server, test) is None}
        for test in suspects.keys() - unexplained:
            comparison.on_purpose.setdefault(f"{server}, {protocol}: {reason_of(server, test)}", set()).add(short(test))
        if unexplained:
            files = {file for test in unexplained if (file := comparison.results[server].files.get(test))}
            plain = perform(protocol, PLAIN, f"for-{SERVERS.index(server)}", files)
            again = suspects_of(plain, perform(protocol, server, "again", files), server)
            for test in sorted(unexplained):
                entries = comparison.defects if test in again else comparison.flakes
                entries.append(f"{server}, {protocol}: `{test}` ({suspects[test]})")
    return comparison


def suspects_of(plain: Result, other: Result, server: str) -> dict[str, str]:
    """Return what is worse; `stoppable serve` may skip tests, whose set-up asks for what an agent cannot do."""
    return {
        test: how for test, how in worse(plain, other).items() if server != SERVE or other.states.get(test) == FAILED
    }


def reason_of(server: str, test: str) -> str | None:
    """Return why a test does not pass with stoppable, if that is on purpose."""
    return next((why for (name, part), why in ON_PURPOSE.items() if name == server and part in test), None)


def short(test: str) -> str:
    """Return the name of a test without its module, its class and its transport."""
    return test.partition("[")[0].rpartition(".")[2]


# The page


def page(facts: list[str], comparisons: list[Comparison]) -> str:
    """Return the page with the figures."""
    lines = [HEAD, *facts, "", "| suite | server | passed | failed | skipped | time |", "|---|---|---:|---:|---:|---:|"]
    for each in comparisons:
        for server, result in each.results.items():
            count = Counter(result.states.values())
            figures = f"{count[PASSED]} | {count[FAILED]} | {count[SKIPPED]} | {result.seconds:.0f} s"
            lines.append(f"| {each.protocol} (`{each.commit}`) | {server} | {figures} |")
    for title, entries in (
        ("Worse with stoppable", [line for each in comparisons for line in each.defects]),
        ("Different on purpose", [line for each in comparisons for line in differences_of(each)]),
        ("Worse once, but not again", [line for each in comparisons for line in each.flakes]),
        ("Failed on the plain SDK", [line for each in comparisons for line in failures_of(each)]),
    ):
        lines += ["", f"## {title}", "", *([f"- {entry}" for entry in entries] or ["Nothing."])]
    return "\n".join([*lines, ""])


def differences_of(comparison: Comparison) -> list[str]:
    """Name the tests that do not pass with stoppable on purpose, by the reason."""
    return [
        f"{why}: {', '.join(f'`{test}`' for test in sorted(tests))}"
        for why, tests in sorted(comparison.on_purpose.items())
    ]


def failures_of(comparison: Comparison) -> list[str]:
    """Name the tests that fail on the plain SDK, and say where they pass with stoppable."""
    lines = []
    for test, state in sorted(comparison.results[PLAIN].states.items()):
        if state == FAILED:
            better = [name for name in (ADAPTER, SERVE) if comparison.results[name].states.get(test) == PASSED]
            lines.append(f"{comparison.protocol}: `{test}`" + (f", not on {' and '.join(better)}" if better else ""))
    return lines


if __name__ == "__main__":
    main()
