"""Where a statement is at home: inside a run, a cancel scope, a trio loop."""

from __future__ import annotations

import asyncio

import stoppable
from measure import Batch, load


async def noop() -> None:
    """Do nothing: what every contender awaits."""


def in_run(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch in the task that executes a run."""

    async def main() -> int:
        async with stoppable.open_run("bench"):
            return await batch()

    return runner.run(main())


def in_own_task(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch inside a run, but in a task that the user's code started, as gather and TaskGroup do."""

    async def main() -> int:
        async with stoppable.open_run("bench"):
            return await asyncio.create_task(batch())

    return runner.run(main())


def in_anyio_scope(runner: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch where anyio has something to look at; outside any scope its check returns early."""

    async def main() -> int:
        with load("anyio").CancelScope():
            return await batch()

    return runner.run(main())


def in_trio(_: asyncio.Runner, batch: Batch) -> int:
    """Execute a batch in a trio loop."""
    return load("trio").run(batch)
