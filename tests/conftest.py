"""Shared by all tests: nothing is left running afterwards."""

import os

import pytest

import stoppable
from stoppable.testing import FakeClock, no_orphans

from .served import server_process


@pytest.fixture(autouse=True)
def _no_orphans():
    if os.environ.get("STOPPABLE_TEST_INSTRUMENTED"):  # every guarantee holds with it as well: make test-instrumented
        stoppable.instrument()
    with no_orphans(within=30):
        yield
    stoppable.uninstrument()  # what commands of the command line have switched on


@pytest.fixture
def uninstrumented():
    """For tests of threads that are none of the run's, which ``instrument()`` makes its own."""
    stoppable.uninstrument()


@pytest.fixture
def clock():
    with FakeClock() as clock:
        yield clock


@pytest.fixture(scope="session")
def served():
    """The address of a server process that the tests of the client and the command line share."""
    with server_process("--store", "memory://") as url:
        yield url
