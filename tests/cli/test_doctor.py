"""`stoppable doctor` tries what Stop reaches, and knows what is installed."""

import importlib.metadata
import json
import subprocess
import sys
import threading

import pytest

import stoppable
from stoppable.cli import doctor
from stoppable.cli.exits import Exit

TRIED = [
    "a task",
    "a thread and the commands it has started",
    "an agent process that computes",
    "an agent process and a command that has left it",
]

# A busy machine may need longer than two seconds to see that what was killed is dead.
PATIENTLY = """
import dataclasses
from stoppable.cli import doctor, main
doctor._POLICY = dataclasses.replace(doctor._POLICY, kill=60)
main()
"""


@pytest.fixture
def here(monkeypatch):
    """Return the command in this process, which it leaves as it was."""
    yield lambda call, code=Exit.DONE: call("doctor", "--json", code=code)
    stoppable.uninstrument()


def test_it_tries_what_stop_reaches_and_leaves_nothing():
    command = [sys.executable, "-c", PATIENTLY, "doctor"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    for what in TRIED:
        assert f"  ok   {what}: stopped after " in done.stdout
    assert f"stoppable {stoppable.__version__}, Python {sys.version.split()[0]}, Linux " in done.stdout
    assert done.stdout.endswith("no problems\n")


def test_what_does_not_stop_is_a_problem_with_its_name(stoppable, here, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(
        doctor, "_TRIALS", {"a deaf thread": (released.wait, "auto"), "nothing": (lambda: 1 / 0, "auto")}
    )
    monkeypatch.setattr(doctor, "_POLICY", doctor.Policy(grace=0.1, interrupt=0.1, cancel=0.1, kill=0.1))
    monkeypatch.setattr(doctor, "_has_begun", lambda event: event.type in {"status", "done"})
    try:
        report = json.loads(here(stoppable, Exit.FAILED).stdout)
    finally:
        released.set()
    deaf, failed = report["problems"]
    assert deaf.startswith("a deaf thread did not stop: ")
    assert deaf.endswith("(abandoned)")
    assert failed == "nothing failed: division by zero"
    assert [one["problem"] for one in report["stops"]] == report["problems"]


@pytest.fixture
def installed(monkeypatch):
    """Pretend that stoppable has some extras, and that some packages are installed."""

    def pretend(needs, versions):
        def version(package):
            if package not in versions:
                raise importlib.metadata.PackageNotFoundError(package)
            return versions[package]

        monkeypatch.setattr(importlib.metadata, "requires", lambda _: needs)
        monkeypatch.setattr(importlib.metadata, "version", version)
        return {extra.name: (extra.is_there, extra.told) for extra in doctor._extras()}

    return pretend


def test_an_extra_is_there_missing_or_too_old(installed):
    needs = [
        'one[more]>=1.10; extra == "good"',
        'two>=2.0; extra == "good"',
        'three; extra == "bare"',
        "one>=1.11.0; extra == 'old'",
        'gone>=1; extra == "missing"',
        'gone>=1; python_version >= "3.99" and extra == "later"',
        'stoppable[good]; extra == "only-ours"',
        "always>=1",
    ]
    extras = installed(needs, {"one": "1.10.2", "two": "2.0rc1", "three": "0.1"})
    assert extras["good"] == (True, "one 1.10.2, two 2.0rc1")
    assert extras["bare"] == (True, "three 0.1")
    assert extras["old"] == (False, f"one 1.10.2 is older than 1.11.0: {doctor.pip_install('old', upgrade=True)}")
    assert extras["missing"] == (False, f"gone not installed: {doctor.pip_install('missing')}")
    assert {*extras} == {"good", "bare", "old", "missing"}


def test_the_extras_of_this_installation_are_listed(stoppable, here, monkeypatch):
    monkeypatch.setattr(doctor, "_TRIALS", {})
    extras = {one["name"]: one for one in json.loads(here(stoppable).stdout)["extras"]}
    assert extras["cli"]["is_there"]
    assert extras["cli"]["told"].startswith(f"httpx {importlib.metadata.version('httpx')}, ")


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("system", "Darwin", "processes can only be followed on Linux"),
        ("python_version_tuple", ("3", "99", "0"), "Python 3.99 is not tested: use 3.11 to 3.13"),
    ],
)
def test_a_machine_that_is_not_supported_is_a_problem(monkeypatch, attribute, value, told):
    assert list(doctor._system_problems()) == []
    monkeypatch.setattr(doctor.platform, attribute, lambda: value)
    [problem] = doctor._system_problems()
    assert problem.startswith(told)
