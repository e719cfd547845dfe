"""Shared by all tests: nothing is left running afterwards."""

import pytest

from stoppable.testing import FakeClock, no_orphans


@pytest.fixture(autouse=True)
def _no_orphans():
    with no_orphans():
        yield


@pytest.fixture
def clock():
    with FakeClock() as clock:
        yield clock
