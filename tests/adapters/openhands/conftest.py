"""Warnings of openhands and of what it stands on are not ours to mend; all others stay errors."""

import os
import warnings
from pathlib import Path

import pytest

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network
os.environ.setdefault("OPENHANDS_SUPPRESS_BANNER", "1")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    import openhands.sdk
    import openhands.tools.terminal  # noqa: F401

    from .world import world as the_world

HERE = Path(__file__).parent
FOREIGN = ["ignore::DeprecationWarning", "ignore:.*`ReadOnly` qualifier:UserWarning"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture
def world():
    the_world.reset()
    yield the_world
    the_world.release_all()
