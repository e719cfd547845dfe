"""Tools that start processes in the ordinary way: after install() and wrap(), these belong to their run."""

import asyncio

import pytest

import stoppable

from .serving import Client, asked, served
from .test_traps import driven
from .world import DEADLINE


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_a_plain_process_of_a_tool_dies_with_the_run(tmp_path, mode):
    with served(tmp_path) as server:
        async with Client(server, "process_tool") as client:
            async with asked(client):
                await server.world.saw("enter process_tool")
                process = server.world.processes[0]
                assert process.poll() is None
                response = await client.cancel(mode=mode, wait=DEADLINE)
            assert response.json()["status"] == "stopped", response.text
            assert process.wait(DEADLINE) < 0


async def test_also_with_a_runner_that_is_driven():
    stoppable.uninstrument()
    async with stoppable.Supervisor() as supervisor, driven("process_tool", supervisor=supervisor) as (world, run):

        async def read():
            return [event async for event in run()]

        reading = asyncio.create_task(read())
        await world.saw("enter process_tool")
        [record] = await supervisor.find("adk:app/ann/s")
        receipt = await supervisor.stop(record.id, "immediate", wait=DEADLINE)
        assert (receipt.status, world.processes[0].wait(DEADLINE) < 0) == ("stopped", True)
        assert (await reading)[-1].error_code == "INVOCATION_ABORTED"
