"""What several runs share belongs to none of them, though one of them made it."""

import asyncio
import sys
from pathlib import Path

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.computer_use.base_computer import BaseComputer, ComputerEnvironment, ComputerState
from google.adk.tools.computer_use.computer_use_toolset import ComputerUseToolset
from google.adk.tools.mcp_tool.mcp_session_manager import StdioConnectionParams
from google.adk.tools.mcp_tool.mcp_toolset import McpToolset
from google.genai import types
from mcp import StdioServerParameters
from tests.process_states import is_alive

import stoppable
from stoppable.adapters.adk import wrap

from .world import DEADLINE, answer, answers, last_text

SERVER = Path(__file__).parents[1] / "mcp_server.py"


class Asking(BaseLlm):
    """A model that calls the tool that its user names ("go hold ann"), and answers; it thinks for ever if asked to."""

    model: str = "asking"
    thinking: object  # an event

    async def generate_content_async(self, llm_request, stream=False):
        _, tool, who, *more = last_text(llm_request.contents).split()
        if not answers(llm_request.contents):
            arguments = {"who": who} if tool == "hold" else {}
            call = types.Part(function_call=types.FunctionCall(name=tool, args=arguments))
            yield LlmResponse(content=types.Content(role="model", parts=[call]))
        else:
            if more:
                self.thinking.set()
                await asyncio.Event().wait()
            result = llm_request.contents[-1].parts[0].function_response.response
            yield answer(f"the tool said {result}")


@pytest.fixture
def toolset(tmp_path):
    command = StdioServerParameters(command=sys.executable, args=[str(SERVER), str(tmp_path)])
    return McpToolset(connection_params=StdioConnectionParams(server_params=command, timeout=3 * DEADLINE))


async def say(runner, user, text):
    """Return the events of a turn of a user."""
    await runner.session_service.create_session(app_name="app", user_id=user, session_id="s")
    message = types.Content(role="user", parts=[types.Part(text=text)])
    return [event async for event in runner.run_async(user_id=user, session_id="s", new_message=message)]


async def appears(path):
    async with asyncio.timeout(3 * DEADLINE):  # its server imports for long on a busy machine
        while not path.exists():
            await asyncio.sleep(0.01)


def servers(folder):
    """Return the pids of the servers that were started, and whether each is alive."""
    pids = [int(path.name.split()[1]) for path in folder.glob("pid *")]
    return [(pid, is_alive(pid)) for pid in pids]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("made_by", ["a call in flight", "a call that is over"])
@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_a_stop_of_the_run_that_started_an_mcp_server_leaves_the_call_of_another_user_alone(
    toolset, tmp_path, made_by, mode
):
    thinking = asyncio.Event()
    agent = LlmAgent(name="asking", model=Asking(thinking=thinking), tools=[toolset])
    runner = InMemoryRunner(agent=agent, app_name="app")
    async with stoppable.Supervisor() as supervisor:
        wrap(runner, supervisor)
        is_in_flight = made_by == "a call in flight"
        ann = asyncio.create_task(say(runner, "ann", "go hold ann" if is_in_flight else "go quick ann thinks"))
        async with asyncio.timeout(3 * DEADLINE):
            await (appears(tmp_path / "ann entered") if is_in_flight else thinking.wait())
        bob = asyncio.create_task(say(runner, "bob", "go hold bob"))
        await appears(tmp_path / "bob entered")
        [run] = await supervisor.find("adk:app/ann/s")
        receipt = await supervisor.stop(run.id, mode, wait=DEADLINE)
        assert (receipt.status, [node.name for node in receipt.entries if node.kind == "spawn"]) == ("stopped", [])
        assert (await ann)[-1].error_code == "INVOCATION_ABORTED"
        [(pid, is_alive)] = servers(tmp_path)
        assert is_alive, "the stop of one user ended the server of all"
        (tmp_path / "bob released").touch()
        async with asyncio.timeout(DEADLINE):
            assert "held for bob" in str(await bob)
        await runner.close()
        async with asyncio.timeout(DEADLINE):
            while servers(tmp_path) != [(pid, False)]:  # it ends with its toolset
                await asyncio.sleep(0.01)


def without_actions(computer):
    """Give a class those actions of a computer that no test uses."""
    for name in computer.__abstractmethods__:
        setattr(computer, name, BaseComputer.open_web_browser)
    computer.__abstractmethods__ = frozenset()
    return computer


@without_actions
class Browser(BaseComputer):
    """A process and a task that reads from it, as a driver of browsers has them; both begin with the first run."""

    def __init__(self):
        self.starts = 0
        self.searching, self.released = asyncio.Event(), asyncio.Event()

    async def initialize(self):
        self.starts += 1
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
        self._lines = asyncio.Queue()
        self.reader = asyncio.create_task(self._read())

    async def _read(self):
        async for line in self.process.stdout:
            self._lines.put_nowait(line.decode().strip())

    async def close(self):
        self.process.stdin.close()
        await asyncio.gather(self.process.wait(), self.reader)

    async def screen_size(self):
        return 100, 100

    async def environment(self):
        return ComputerEnvironment.ENVIRONMENT_BROWSER

    async def _show(self, page):
        self.process.stdin.write(f"{page}\n".encode())
        return ComputerState(screenshot=b"", url=await self._lines.get())

    async def go_back(self):
        return await self._show("page before")

    async def search(self):
        self.searching.set()
        await self.released.wait()
        return await self._show("page found")


@pytest.mark.parametrize("mode", ["immediate", "kill"])
async def test_a_stop_of_the_run_that_started_a_computer_leaves_the_call_of_another_user_alone(mode):
    thinking, computer = asyncio.Event(), Browser()
    agent = LlmAgent(name="asking", model=Asking(thinking=thinking), tools=[ComputerUseToolset(computer=computer)])
    runner = InMemoryRunner(agent=agent, app_name="app")
    async with stoppable.Supervisor() as supervisor, asyncio.timeout(3 * DEADLINE):
        wrap(runner, supervisor)
        ann = asyncio.create_task(say(runner, "ann", "go go_back ann thinks"))
        await thinking.wait()
        bob = asyncio.create_task(say(runner, "bob", "go search bob"))
        await computer.searching.wait()
        [run] = await supervisor.find("adk:app/ann/s")
        receipt = await supervisor.stop(run.id, mode, wait=DEADLINE)
        assert (receipt.status, [node.name for node in receipt.entries if node.kind == "spawn"]) == ("stopped", [])
        assert (await ann)[-1].error_code == "INVOCATION_ABORTED"
        assert computer.process.returncode is None, "the stop of one user ended the computer of all"
        computer.released.set()
        assert "page found" in str(await bob)
        assert computer.starts == 1
        await runner.close()
        assert computer.process.returncode == 0, "it ends with its toolset"
