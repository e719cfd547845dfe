"""Warnings of a2a-sdk and of what it stands on are not ours to mend; all others stay errors."""

import asyncio
import os
from pathlib import Path

os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")

import pytest

import stoppable

HERE = Path(__file__).parent
FOREIGN = [
    "ignore::DeprecationWarning:a2a",
    "ignore::DeprecationWarning:google",
    "ignore::DeprecationWarning:starlette",
]


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            for line in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture
async def supervisor():
    async with stoppable.Supervisor() as supervisor:
        yield supervisor


@pytest.fixture(scope="module")
def grpc_thread():
    """The thread of gRPC is that of the module, not something that a test leaves behind."""
    import grpc

    async def prepare():
        grpc.aio.init_grpc_aio()

    with asyncio.Runner() as runner:  # it wants a loop that runs
        runner.run(prepare())
        yield
        grpc.aio.shutdown_grpc_aio()
