"""Closes what the agents of a test have opened."""

import pytest

from stoppable.adapters.smolagents import install

from .world import close_models


@pytest.fixture(autouse=True)
def installed():
    """Install the adapter, as a program does once."""
    install()
    yield
    close_models()
