"""What this adapter needs of mcp and FastMCP is there, and what is missing is named."""

import pytest

from stoppable.adapters import mcp
from stoppable.adapters.mcp import names

from .conftest import fastmcp


def test_every_name_is_there():
    assert names.missing() == []


def test_a_version_without_a_name_is_refused_with_it(monkeypatch):
    monkeypatch.setitem(names._FUNCTIONS, "mcp.client.session:ClientSession.call_tool", ("self", "of_old"))
    monkeypatch.setitem(names._FUNCTIONS, "mcp.nowhere:gone", ())
    lacking = "it lacks mcp.client.session:ClientSession.call_tool, mcp.nowhere:gone"
    with pytest.raises(RuntimeError, match=rf"mcp 2\S+ is not supported: {lacking}"):
        mcp.install()


@pytest.mark.skipif(fastmcp is None, reason="FastMCP is not installed")
def test_a_fastmcp_without_its_private_name_is_refused(monkeypatch):
    server = fastmcp.FastMCP("tools")
    del server._mcp_server
    with pytest.raises(ImportError, match=r"fastmcp 4\S+ has no FastMCP._mcp_server"):
        mcp.supervise(server)
