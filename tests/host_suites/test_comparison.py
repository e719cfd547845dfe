"""What `make test-host` calls a defect: worse with instrument(), again, and not as bad plain."""

from pathlib import Path

import pytest

from .comparison import compare, worse
from .report import line, page
from .suites import FAILED, PASSED, SKIPPED, Result


def result(**states):
    return Result(states=states, files={test: f"file_of_{test}" for test in states}, seconds=1, log=Path("log"))


class ScriptedSuite:
    """A suite whose results are known beforehand, in the order of the runs."""

    name = "scripted"

    def __init__(self, *results):
        self.results = list(results)
        self.runs = []

    def run(self, python, scratch, *, instrumented, files=()):
        self.runs.append((instrumented, set(files)))
        return self.results.pop(0)

    def note(self, python):
        return ""


class SomePython:
    version = "3.11.0"


@pytest.mark.parametrize(
    ("before", "after", "is_worse"),
    [
        (PASSED, PASSED, False),
        (PASSED, FAILED, True),
        (PASSED, SKIPPED, True),
        (SKIPPED, SKIPPED, False),
        (SKIPPED, PASSED, False),
        (SKIPPED, FAILED, True),
        (FAILED, FAILED, False),
        (FAILED, PASSED, False),
        (FAILED, SKIPPED, False),
    ],
)
def test_a_test_is_worse_if_it_newly_fails_or_is_newly_skipped(before, after, is_worse):
    assert bool(worse(result(a=before), result(a=after))) is is_worse


def test_a_test_that_is_not_run_any_more_is_worse():
    assert worse(result(a=PASSED, b=SKIPPED, c=FAILED), result()).keys() == {"a", "b"}


def test_a_test_that_fails_and_is_not_run_plain_is_worse():
    assert worse(result(), result(a=FAILED, b=PASSED, c=SKIPPED)).keys() == {"a"}


def test_a_suite_that_is_no_worse_is_run_once_each_way(tmp_path):
    suite = ScriptedSuite(result(a=PASSED), result(a=PASSED))
    comparison = compare(SomePython(), suite, tmp_path)
    assert suite.runs == [(False, set()), (True, set())]
    assert comparison.defects == comparison.flakes == {}


def test_what_fails_again_is_a_defect_and_only_its_file_is_repeated(tmp_path):
    good, bad = result(a=PASSED, b=PASSED), result(a=FAILED, b=PASSED)
    suite = ScriptedSuite(good, bad, result(a=PASSED), result(a=PASSED), result(a=PASSED), result(a=FAILED))
    comparison = compare(SomePython(), suite, tmp_path)
    assert suite.runs[2:] == [(False, {"file_of_a"}), (True, {"file_of_a"})] * 2
    assert comparison.defects == {"a": "passed, then failed"}
    assert "DEFECT: a" in line(comparison)
    assert "`a` (passed, then failed)" in page("", [], [comparison], []).partition("## Worse once")[0]


def test_what_passes_when_it_is_repeated_needs_luck(tmp_path):
    good, bad = result(a=PASSED), result(a=FAILED)
    comparison = compare(SomePython(), ScriptedSuite(good, bad, good, good, good, good), tmp_path)
    assert (comparison.defects, comparison.flakes) == ({}, {"a": "passed, then failed"})
    assert "needs luck: a" in line(comparison)


def test_what_also_fails_plain_when_it_is_repeated_needs_luck(tmp_path):
    good, bad = result(a=PASSED), result(a=FAILED)
    comparison = compare(SomePython(), ScriptedSuite(good, bad, bad, bad, good, bad), tmp_path)
    assert (comparison.defects, comparison.flakes) == ({}, {"a": "passed, then failed"})


def test_a_suite_that_runs_no_test_is_an_error(tmp_path):
    log = tmp_path / "log"
    log.write_text("no such suite")
    empty = Result(states={}, files={}, seconds=1, log=log)
    with pytest.raises(RuntimeError, match="no such suite"):
        compare(SomePython(), ScriptedSuite(empty, empty), tmp_path / "logs")
