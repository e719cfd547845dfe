"""`adk web` and `adk api_server`, unmodified, with one line in services.py; and the example app."""

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from .processes import process
from .serving import Client, asked
from .world import DEADLINE

ROOT = Path(__file__).parents[3]
AGENTS = ROOT / "examples/adk_app/agents"


def patient(folder):
    """Copy the agents of the example, and let the writer take a second for each word: no test has to be quick."""
    agents = Path(shutil.copytree(AGENTS, folder / "agents"))
    file = agents / "writer" / "agent.py"
    text = file.read_text()
    assert "sleep(0.05)" in text
    file.write_text(text.replace("sleep(0.05)", "sleep(1)"))
    return str(agents)


@pytest.mark.parametrize("command", ["web", "api_server"])
async def test_one_line_in_services_makes_the_commands_of_adk_stoppable(warm, tmp_path, command):
    arguments = [
        "-m",
        "google.adk.cli",
        command,
        "--port",
        "0",
        "--session_service_uri",
        "memory://",
        patient(tmp_path),
    ]
    with process(*arguments, cwd=tmp_path) as made:
        made.hear("stoppable is active")
        url = made.hear(r"Uvicorn running on (http://\S+)")[1]
        async with Client(SimpleNamespace(url=url), "writer") as client:
            async with asked(client) as answer:
                async with asyncio.timeout(DEADLINE):
                    while not (await client.http.get("/stoppable/runs?status=running")).json()["runs"]:
                        await asyncio.sleep(0.02)
                response = await client.cancel(mode="immediate", wait=20)
                assert response.json()["status"] == "stopped", response.text
            assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
            assert (await client.http.get("/stoppable/")).status_code == 200


async def test_the_example_runs(warm):
    code = "import main, uvicorn; uvicorn.run(main.app, port=0)"
    with process("-c", code, cwd=ROOT / "examples/adk_app") as made:
        url = made.hear(r"Uvicorn running on (http://\S+)")[1]
        async with Client(SimpleNamespace(url=url), "writer") as client:
            told, answers = [], []
            async for event in client.stream("the sea"):
                told.append(event)
                if len(told) == 5:
                    answers.append(await client.cancel())
            assert [answer.status_code for answer in answers] == [200]
            assert told[-1]["errorCode"] == "INVOCATION_ABORTED"
            assert len(told) < 200, "it wrote on"
            assert "word0 word1 " in str((await client.events())[-1])
