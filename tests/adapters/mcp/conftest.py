"""Real servers, over stdio and HTTP, and clients of them."""

import contextlib
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from tests.ports import held_port
from tests.waiting import until, wait_until

from stoppable.adapters import mcp

HERE = Path(__file__).parent
SERVER = HERE / "tool_server.py"
try:
    import fastmcp
except ModuleNotFoundError:  # it needs a newer mcp than the oldest that we support
    fastmcp = None
FRAMEWORKS = ["mcp"] if fastmcp is None else ["mcp", "fastmcp"]
DEADLINE = 100  # only a defect takes so long, also where everything else is busy
WIRES = ["stdio", "http", "http 2025-11-25"]
FOREIGN = ["ignore::DeprecationWarning:fastmcp", "ignore::DeprecationWarning:mcp"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(autouse=True, scope="session")
def _installed():
    mcp.install()


class Place:
    """A server, and the folder in which its tools leave marks."""

    def __init__(self, folder, framework, kind, wire, url=None):
        self.folder, self.framework, self.kind, self.wire, self.url = folder, framework, kind, wire, url

    def client(self):
        """Return a client of the SDK."""
        mode = "legacy" if "2025" in self.wire else "auto"
        return Client(self.url or stdio_client(self.command), mode=mode)

    @property
    def command(self):
        words = [str(SERVER), str(self.folder), self.framework, self.kind, "stdio"]
        return StdioServerParameters(command=sys.executable, args=words)

    @property
    def pid(self):
        return int((self.folder / "pid").read_text())

    def marks(self, who):
        path = self.folder / f"{who} marks"
        return path.stat().st_size if path.exists() else 0

    def release(self, who):
        (self.folder / f"{who} released").touch()

    def has_ended(self, who):
        return (self.folder / f"{who} ended").exists()

    def is_cut(self, who):
        """Return whether the cancel has reached a supervised server's task, which may still have a thread."""
        return (self.folder / f"{who} cut").exists()

    async def begun(self, *names):
        await until(lambda: all(self.marks(name) for name in names), DEADLINE)


@contextlib.contextmanager
def listening(folder, framework, kind):
    """Yield the address of a server over HTTP."""
    with held_port() as port:
        command, quiet = [sys.executable, str(SERVER), str(folder), framework, kind, str(port)], subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            wait_until(lambda: _answers(f"http://127.0.0.1:{port}/mcp"), DEADLINE)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()
            process.wait(30)


def _answers(url):
    try:
        urllib.request.urlopen(url, timeout=10).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Servers over HTTP, each started when it is first needed, before the test itself begins."""
    with contextlib.ExitStack() as stack:
        known = {}

        def server(framework, kind):
            if (framework, kind) not in known:
                folder = tmp_path_factory.mktemp("served")
                known[framework, kind] = folder, stack.enter_context(listening(folder, framework, kind))
            return known[framework, kind]

        yield server


@pytest.fixture(scope="session", params=[(framework, wire) for framework in FRAMEWORKS for wire in WIRES], ids=" ".join)
def prepared(request, servers):
    """A framework and a wire, with its servers started."""
    framework, wire = request.param
    if wire != "stdio":
        for kind in ("plain", "supervised"):
            servers(framework, kind)
    return framework, wire


@pytest.fixture
def place(prepared, servers, tmp_path):
    """Return servers of this framework on this wire, by their kind."""

    def place(kind):
        framework, wire = prepared
        if wire == "stdio":
            return Place(tmp_path, framework, kind, wire)
        folder, url = servers(framework, kind)
        return Place(folder, framework, kind, wire, url)

    return place


@pytest.fixture
def local(tmp_path):
    """Return a server of the SDK over stdio, of a kind."""
    return lambda kind: Place(tmp_path, "mcp", kind, "stdio")
