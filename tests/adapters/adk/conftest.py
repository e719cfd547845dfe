"""Warnings of google-adk and of what it stands on are not ours to mend; all others stay errors."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    import google.adk.cli.cli_tools_click
    import google.adk.cli.fast_api
    import google.adk.tools.mcp_tool.mcp_toolset  # noqa: F401

from .processes import prepare
from .serving import served

HERE = Path(__file__).parent
FOREIGN = [
    "ignore::DeprecationWarning:google",
    "ignore::UserWarning:google",
    "ignore::DeprecationWarning:authlib",
    r"ignore:\[EXPERIMENTAL\]",
    "ignore:Please use create_session:DeprecationWarning",
    "ignore:The `session` parameter is deprecated:DeprecationWarning",
    r"ignore:.*is deprecated in favor of Workflow:DeprecationWarning",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("agents")) as server:
        yield server


@pytest.fixture
def server(shared_server):
    """A server with stoppable installed as it comes; the tests of a module share it, each with sessions of its own."""
    shared_server.world.reset()
    yield shared_server
    shared_server.world.release_all()


@pytest.fixture(scope="session")
def warm():
    """What `process` needs."""
    prepare()
