"""Real servers, over HTTP and stdio, and the official client."""

import asyncio
import contextlib
import functools
import json
import sys
from pathlib import Path

import pytest
from fastapi import Request
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from tests.waiting import until

import stoppable
from stoppable import Policy
from stoppable.adapters.mcp.serving import mcp_api
from stoppable.server import Principal
from stoppable.server.access import EVERYTHING

from ...server.serving import served
from ..openai_api.agents import AGENTS, GATES, Marks

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEADLINE = 100  # only a defect takes so long, also where everything else is busy
# What is in the middle of a step gets little time, but nothing is given up because the machine is busy.
BRISK = Policy(grace=0.2, interrupt=0.05, cancel=DEADLINE, kill=DEADLINE, blind_grace=0.0)
# For what nothing can end.
HASTY = Policy(grace=0.1, interrupt=0.05, cancel=0.1, kill=0.1, blind_grace=0.0)
MODES = {"2026-07-28": "auto", "2025-11-25": "legacy"}
FOREIGN = ["ignore::DeprecationWarning:mcp"]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@contextlib.contextmanager
def serving(policy=BRISK, agents=AGENTS, **options):
    """Serve agents at /mcp, as ``stoppable serve`` does."""
    stoppable.instrument()
    with served(agents, routers=[functools.partial(mcp_api, policy=policy)], **options) as service:
        try:
            yield service
        finally:
            GATES.release.set()  # a test that fails has not let them go


async def by_header(request: Request) -> Principal:
    """Return who the headers of a request say that it is."""
    headers = request.headers
    return Principal(owner=headers["x-owner"], scopes=headers.get("x-scopes", EVERYTHING))


@contextlib.asynccontextmanager
async def client_of(service, mode="auto", headers=None, **options):
    """Yield the official client of a server over HTTP."""
    async with contextlib.AsyncExitStack() as stack:
        transport = f"{service.url}/mcp"
        if headers is not None:
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
            transport = streamable_http_client(transport, http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=mode, **options))


def command(target="tests.surfaces.openai_api.agents:AGENTS", *more, **environment):
    """Return how a client starts ``stoppable mcp``."""
    return StdioServerParameters(
        command=sys.executable, args=["-m", "stoppable", "mcp", target, *more], cwd=ROOT, env=environment or None
    )


@contextlib.asynccontextmanager
async def connected(wire, policy=BRISK):
    """Yield the official client of a server, on a wire: how it is reached, and which version of the protocol."""
    transport, _, version = wire.partition(" ")
    async with contextlib.AsyncExitStack() as stack:
        if transport == "stdio":
            client = Client(stdio_client(command()), mode=MODES[version])
            client = await stack.enter_async_context(client)
        else:
            service = stack.enter_context(serving(policy))
            client = await stack.enter_async_context(client_of(service, MODES[version]))
        assert client.protocol_version == version
        yield client


WIRES = [f"{transport} {version}" for transport in ("http", "stdio") for version in MODES]


class Call:
    """A call of a tool by the official client, and the progress that it hears."""

    def __init__(self, client, tool, arguments=None):
        self.heard = []
        calling = client.call_tool(tool, arguments or {}, progress_callback=self._hear)
        self.task = asyncio.create_task(calling)

    async def _hear(self, done, _total, message):
        self.heard.append((done, message))

    @property
    def words(self):
        """What the agent has said so far."""
        return "".join(message for _, message in self.heard[1:])

    async def run_id(self):
        """Return the id of its run, which is the first that a client hears."""
        await until(lambda: self.heard, DEADLINE)
        return self.heard[0][1].rpartition(" ")[2]

    async def cancel(self):
        """Cancel it, as a user of the client does."""
        self.task.cancel()
        await asyncio.wait({self.task})
        assert self.task.cancelled()


async def read(client, run_id):
    """Return what the resource of a run says."""
    found = await client.read_resource(f"stoppable://runs/{run_id}")
    return json.loads(found.contents[0].text)


async def over(client, run_id):
    """Return what the resource of a run says once it has ended."""
    async with asyncio.timeout(DEADLINE):
        while not (facts := await read(client, run_id)).get("receipt"):
            await asyncio.sleep(0.01)
    return facts


def text_of(result):
    return "\n".join(block.text for block in result.content)


@pytest.fixture(autouse=True)
def gates():
    GATES.close()
    yield GATES
    GATES.release.set()


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path)


async def ended(service, run_id=None):
    """Return the record of a run, or of the newest one, once it has ended."""

    def record():
        runs = service.supervisor.blocking.list(limit=1).runs
        found = run_id or (runs and runs[0].id)
        return found and (one := service.supervisor.blocking.get(found)).over and one

    return await until(record, DEADLINE)


def runs(service):
    return service.supervisor.blocking.list().runs
