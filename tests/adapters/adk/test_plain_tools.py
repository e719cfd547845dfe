"""Tools that start processes in the ordinary way: after install(), these belong to their run."""

import pytest

from .serving import Client, asked, served
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
