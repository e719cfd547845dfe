"""An MCP server with the two tools; its argument is the file in which they write."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mcp.server import MCPServer

from frameworks_unmodified.log import Log

if __name__ == "__main__":
    log = Log(Path(sys.argv[1]))
    server = MCPServer("trips", log_level="ERROR")
    for tool in log.tools():
        server.tool()(tool)
    server.run("stdio")
