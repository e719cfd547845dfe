"""Warnings of openhands and of what it stands on are not ours to mend; all others stay errors."""

import os
import signal
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    import openhands.sdk
    import openhands.tools.terminal  # noqa: F401
    from openhands.sdk.conversation.impl import local_conversation

    from . import ready_terminals
    from .world import DEADLINE
    from .world import world as the_world

    ready_terminals.install()

HERE = Path(__file__).parent
FOREIGN = ["ignore::DeprecationWarning", "ignore:.*`ReadOnly` qualifier:UserWarning"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(autouse=True)
def ctrl_c_reaches_commands():
    """What a script starts in the background ignores SIGINT, and so would every command of the shells here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def patient_with_mcp(monkeypatch):
    """OpenHands goes on without the tools of an MCP server that takes half a minute to start."""
    monkeypatch.setattr(local_conversation, "_RUNTIME_MCP_TIMEOUT_SECS", 3 * DEADLINE, raising=False)


@pytest.fixture
def world():
    the_world.reset()
    yield the_world
    the_world.release_all()
