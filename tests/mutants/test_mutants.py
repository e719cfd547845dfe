"""The tests see the mistakes they are there for: each mutant makes one of its tests fail."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .core_mutants import CORE_MUTANTS
from .engine_mutants import ENGINE_MUTANTS
from .mutant import Mutant
from .outcome_mutants import OUTCOME_MUTANTS
from .plain_mutants import PLAIN_MUTANTS
from .process_mutants import PROCESS_MUTANTS
from .store_mutants import STORE_MUTANTS

MUTANTS = (*CORE_MUTANTS, *ENGINE_MUTANTS, *OUTCOME_MUTANTS, *PLAIN_MUTANTS, *PROCESS_MUTANTS, *STORE_MUTANTS)


def chosen(how: str | None) -> tuple[Mutant, ...]:
    """Return the mutants that are tried: all of them, or as many as ``COUNT:SEED`` says."""
    if how is None:
        return MUTANTS
    count, _, seed = how.partition(":")
    return tuple(random.Random(seed).sample(MUTANTS, min(int(count), len(MUTANTS))))


CHOSEN = chosen(os.environ.get("STOPPABLE_MUTANTS"))
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stoppable"
SECONDS = 600  # only what hangs takes so long, also on a busy machine

# An editable install would be found too: without this, a mutant that is not imported would look like one nobody sees.
GUARD = """
import pathlib, stoppable
assert pathlib.Path(stoppable.__file__).is_relative_to({copy!r}), stoppable.__file__
"""
# The machine has to find the mutant, and the same way every time; to shrink what it found would take minutes.
FINDS = """
import os
os.environ["STOPPABLE_LIVES"] = "500"
from hypothesis import Phase, settings
settings.register_profile("finds", derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False)
settings.load_profile("finds")
"""


def run_tests(place: Path, mutant: Mutant | None, nodes: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests in a process that imports a copy of the library, mutated if there is a mutant."""
    shutil.copytree(SOURCE, place / "stoppable", ignore=shutil.ignore_patterns("__pycache__"))
    guard = GUARD.format(copy=str(place)) + (FINDS if mutant is not None and nodes == [mutant.machine] else "")
    (place / "the_copy_is_imported.py").write_text(guard)
    if mutant is not None:
        file = place / "stoppable" / mutant.file
        file.write_text(file.read_text().replace(mutant.snippet, mutant.replacement))
    # Only the plugins that the tests need: the others are half of the time.
    plugins = ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout", "the_copy_is_imported")
    options = ["-x", "-q", *(f"-p{plugin}" for plugin in plugins)]
    # A test that hangs because of a mutant is a failure like any other, and one that does not hang must not look so on
    # a busy machine; the thread method would end the process without a summary.
    options += [f"--timeout={SECONDS / 2 if mutant is None else 10}", "--timeout-method=signal"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *nodes],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(place),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONHASHSEED": "0",  # the lives of the machine depend on the order of sets
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


class Runs:
    """Starts what the tests of this module wait for, two at a time."""

    def __init__(self, pool: ThreadPoolExecutor, place: Callable[[], Path]) -> None:
        self._pool = pool
        self._place = place
        self._futures: dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]] = {}

    def start(self, test: str, mutant: Mutant | None) -> None:
        nodes = {node for each in CHOSEN for node in each.caught_by} if mutant is None else mutant.caught_by
        if mutant is not None and test == test_the_machine_sees_the_mutant.__name__:
            nodes = [mutant.machine]
        self._futures[test, mutant.name if mutant else ""] = self._pool.submit(
            run_tests, self._place(), mutant, sorted(nodes)
        )

    def result(self, test: Callable[..., None], mutant: Mutant | None) -> subprocess.CompletedProcess[str]:
        return self._futures[test.__name__, mutant.name if mutant else ""].result(timeout=2 * SECONDS)


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """All that the chosen tests need, started at once."""
    with ThreadPoolExecutor(2) as pool:
        runs = Runs(pool, lambda: tmp_path_factory.mktemp("copy"))
        for item in request.session.items:
            if item.path == Path(__file__) and "runs" in item.fixturenames:
                mutant = item.callspec.params["mutant"] if hasattr(item, "callspec") else None
                if mutant is None or isinstance(mutant, Mutant):  # else pytest skips it: none of its kind was chosen
                    runs.start(item.originalname, mutant)
        yield runs
        pool.shutdown(cancel_futures=True)


def name_of(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "-")


def saw(done: subprocess.CompletedProcess[str], mutant: Mutant) -> bool:
    report = done.stdout + done.stderr
    # 1: tests failed. 0 is a mutant that lives; 2 and more are mistakes of ours: nothing collected, nothing imported.
    assert done.returncode == 1, f"nobody saw that {mutant.name} ({mutant.breaks}):\n{report}"
    assert "\nFAILED " in report, report
    return True


@pytest.mark.parametrize("mutant", MUTANTS, ids=name_of)
def test_the_snippet_of_the_mutant_is_in_the_source_once(mutant):
    count = (SOURCE / mutant.file).read_text().count(mutant.snippet)
    assert count == 1, f"{mutant.file} has the snippet of {mutant.name!r} {count} times: bring it up to date"


@pytest.mark.timeout(3 * SECONDS)
def test_without_a_mutant_the_same_tests_pass(runs):
    done = runs.result(test_without_a_mutant_the_same_tests_pass, None)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("mutant", CHOSEN, ids=name_of)
def test_the_mutant_is_seen(mutant, runs):
    assert saw(runs.result(test_the_mutant_is_seen, mutant), mutant)


@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("mutant", [mutant for mutant in CHOSEN if mutant.the_machine_sees_it], ids=name_of)
def test_the_machine_sees_the_mutant(mutant, runs):
    assert saw(runs.result(test_the_machine_sees_the_mutant, mutant), mutant)
