"""A scripted model, a CLI with a home of its own, and the adapter."""

import pytest

from stoppable.adapters.claude_agent_sdk import install

from .world import World


@pytest.fixture(autouse=True)
def installed():
    """Install the adapter, as a program does once."""
    install()


@pytest.fixture
def world(tmp_path):
    with World(tmp_path) as world:
        yield world
