"""How `make test-host` runs a suite: instrument() is really on, and the results are those of the runner."""

import sys
from pathlib import Path

import pytest

from . import suites
from .suites import FAILED, PASSED, SKIPPED, CPython, Missing, Package, Python

PROBE = """
import subprocess, sys, threading
print(threading.Thread.start.__code__.co_filename, flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, __file__])
"""
TESTS = """
import os, threading, unittest

class Test(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        self.assertNotIn("CAUSE", os.environ)

    @unittest.skip("always")
    def test_skips(self):
        pass
"""
LEAVES_A_THREAD = """
import threading, unittest

class Test(unittest.TestCase):
    def test_passes(self):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize("instrumented", [True, False])
def test_instrument_is_on_in_the_interpreter_and_in_those_that_it_starts_if_it_is_asked_for(tmp_path, instrumented):
    probe, log = tmp_path / "probe.py", tmp_path / "log"
    probe.write_text(PROBE)
    suites._perform([sys.executable, probe, "and a child"], log, instrumented=instrumented)
    answers = log.read_text().split()
    assert [answer.endswith("instrumentation/threads.py") for answer in answers] == [instrumented] * 2, answers


class OwnFolder(CPython):
    """A suite in a folder of the test, as one that is borrowed from another Python."""

    def __init__(self, path):
        super().__init__(path.stem)
        self._path = path

    def _own(self, python):
        return None

    def _borrow(self, python, scratch):
        return self._path.with_suffix("")


needs_tests = pytest.mark.skipif(
    not Python(Path(sys.executable)).has_tests, reason="the tests of CPython are not installed with this Python"
)


@needs_tests
def test_the_states_are_those_of_the_tests_and_a_file_is_not_blamed_for_one_of_them(tmp_path, monkeypatch):
    monkeypatch.setenv("CAUSE", "1")
    file = tmp_path / "test_three.py"
    file.write_text(TESTS)
    result = OwnFolder(file).run(Python(Path(sys.executable)), tmp_path, instrumented=True)
    assert result.states == {
        "test_three": PASSED,
        "test_three.Test.test_passes": PASSED,
        "test_three.Test.test_fails": FAILED,
        "test_three.Test.test_skips": SKIPPED,
    }
    assert set(result.files.values()) == {"test_three"}


@needs_tests
def test_a_file_that_leaves_a_thread_behind_has_failed(tmp_path):
    file = tmp_path / "test_thread.py"
    file.write_text(LEAVES_A_THREAD)
    result = OwnFolder(file).run(Python(Path(sys.executable)), tmp_path, instrumented=False)
    assert result.states == {"test_thread": FAILED, "test_thread.Test.test_passes": PASSED}


@needs_tests
def test_a_suite_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "SUITE_SECONDS", 3)
    monkeypatch.setattr(suites, "END_SECONDS", 10)
    file = tmp_path / "test_long.py"
    file.write_text("import time\ntime.sleep(1000)\n")
    result = OwnFolder(file).run(Python(Path(sys.executable)), tmp_path, instrumented=False)
    assert result.states.get("test_long", FAILED) == FAILED
    assert result.seconds < 140


OF_A_PACKAGE = """
import sys, threading

def test_the_plugin_is_on():
    assert "some_plugin" in sys.modules, "it is off\\nmore lines"

def test_instrument_is_on():
    assert threading.Thread.start.__code__.co_filename.endswith("instrumentation/threads.py")

def test_needs_a_service():
    raise OSError
"""


@pytest.fixture
def package(tmp_path):
    """The interpreter of an environment that has the source distribution of a package, and a plugin."""
    python = Python(tmp_path / "bin/python")
    python.path.parent.mkdir()
    python.path.symlink_to(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text(Path(sys.prefix, "pyvenv.cfg").read_text())
    (tmp_path / "lib").symlink_to(Path(sys.prefix, "lib"))
    (tmp_path / "some-package/tests").mkdir(parents=True)
    (tmp_path / "some-package/tests/test_some.py").write_text(OF_A_PACKAGE)
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin/some_plugin.py").touch()
    return python


@pytest.mark.parametrize("instrumented", [True, False])
def test_a_package_is_run_with_its_plugin_instead_of_instrument(package, tmp_path, instrumented):
    suite = Package("some-package", plugin=tmp_path / "plugin/some_plugin.py", options=["-knot service"])
    result = suite.run(package, tmp_path, instrumented=instrumented)
    states = {test.rpartition(".")[2]: state for test, state in result.states.items()}
    assert states == {"test_the_plugin_is_on": PASSED if instrumented else FAILED, "test_instrument_is_on": FAILED}
    assert result.deselected == 1
    reasons = {test.rpartition(".")[2]: reason for test, reason in result.reasons.items()}
    assert reasons.keys() == {test for test, state in states.items() if state == FAILED}
    assert instrumented or reasons["test_the_plugin_is_on"] == "AssertionError: it is off"


def test_a_source_distribution_without_tests_is_missing(package, tmp_path):
    with pytest.raises(Missing, match="of other-package has no tests"):
        Package("other-package").run(package, tmp_path, instrumented=False)
