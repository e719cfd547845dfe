"""Plain code takes part while these tests run."""

import pytest

import stoppable


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()
