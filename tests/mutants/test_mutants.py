"""The tests see the mistakes they are there for: each mutant of mutants.py makes one of its tests fail."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stoppable"
SECONDS = 50

# An editable install would be found too: without this, a mutant that is not imported would look like one nobody sees.
# The machine only has to find a mutant, the same one every time; to shrink what it found takes minutes.
GUARD = """
import hypothesis, pathlib, stoppable
assert pathlib.Path(stoppable.__file__).is_relative_to({copy!r}), stoppable.__file__
finds = dict(derandomize=True, database=None, phases=[hypothesis.Phase.generate], report_multiple_bugs=False)
hypothesis.settings.register_profile("finds", **finds)
hypothesis.settings.load_profile("finds")
"""


def run_tests(place: Path, mutant: Mutant | None, nodes: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests in a process that imports a copy of the library, mutated if there is a mutant."""
    shutil.copytree(SOURCE, place / "stoppable", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "the_copy_is_imported.py").write_text(GUARD.format(copy=str(place)))
    if mutant is not None:
        file = place / "stoppable" / mutant.file
        file.write_text(file.read_text().replace(mutant.snippet, mutant.replacement))
    # Only the plugins that the tests need: the others are half of the time.
    plugins = ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout", "the_copy_is_imported")
    options = ["-x", "-q", *(f"-p{plugin}" for plugin in plugins)]
    # A test that hangs is a failure like any other; the thread method would end the process without a summary.
    options += ["--timeout=10", "--timeout-method=signal"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *nodes],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Every selected mutant, two at a time, each with its outcome to come."""
    chosen = [item.callspec.params["mutant"] for item in request.session.items if _is_about_a_mutant(item)]
    with ThreadPoolExecutor(2) as pool:
        futures: dict[str | None, Future[subprocess.CompletedProcess[str]]] = {}
        for mutant in [None, *chosen]:
            place = tmp_path_factory.mktemp("mutant")
            nodes = mutant.caught_by if mutant else {node for each in MUTANTS for node in each.caught_by}
            futures[mutant and mutant.name] = pool.submit(run_tests, place, mutant, sorted(nodes))
        yield futures
        for future in futures.values():
            future.cancel()


def _is_about_a_mutant(item) -> bool:
    return getattr(item, "originalname", None) == "test_the_mutant_is_seen" and item.path == Path(__file__)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_snippet_of_the_mutant_is_in_the_source_once(mutant):
    count = (SOURCE / mutant.file).read_text().count(mutant.snippet)
    assert count == 1, f"{mutant.file} has the snippet of {mutant.name!r} {count} times: bring mutants.py up to date"


@pytest.mark.timeout(2 * SECONDS)
def test_without_a_mutant_the_same_tests_pass(results):
    done = results[None].result(timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_mutant_is_seen(mutant, results):
    done = results[mutant.name].result(timeout=SECONDS)
    report = done.stdout + done.stderr
    # 1: tests failed. 0 is a mutant that lives; 2 and more are mistakes of ours: nothing collected, nothing imported.
    assert done.returncode == 1, f"nobody saw that {mutant.name} ({mutant.breaks}):\n{report}"
    assert "\nFAILED " in report, report
