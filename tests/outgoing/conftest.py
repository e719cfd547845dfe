"""Requests of ordinary clients take part while these tests run."""

import pytest
from tests.providers import Providers

import stoppable


@pytest.fixture(autouse=True)
def instrumented():
    stoppable.instrument()
    yield
    stoppable.uninstrument()


@pytest.fixture
def providers():
    with Providers() as providers:
        yield providers
