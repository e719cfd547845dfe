"""The real command in a process of its own, and the official client."""

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
from pathlib import Path

import acp
import pytest
from tests.waiting import until

from ..openai_api.agents import Marks

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DEADLINE = 100  # only a defect takes so long, also where everything else is busy
PLAIN = "tests.surfaces.openai_api.agents"
OWN = "tests.surfaces.acp.agents"


def command(target, *more):
    """Return the words by which an editor starts an agent."""
    return [sys.executable, "-m", "stoppable", "acp", target, *more]


class Editor:
    """A client of the package with one session, and what it hears."""

    def __init__(self):
        self.updates = []
        self.connection = None
        self.session = ""

    async def session_update(self, session_id, update, **_):
        self.updates.append((session_id, update))

    def said(self, who="agent_message_chunk"):
        """Return the text of the updates of one kind."""
        return "".join(update.content.text for _, update in self.updates if update.session_update == who)

    def calls(self):
        """Return each tool call, with the words for its states."""
        calls = {}
        for _, update in self.updates:
            if update.session_update in {"tool_call", "tool_call_update"}:
                call = calls.setdefault(update.tool_call_id, [])
                call.append(update.title)
                call.append(update.status)
                call += [one.content.text for one in update.content or ()]
        return [[word for word in call if word] for call in calls.values()]

    async def open(self):
        """Open a session."""
        self.session = (await self.connection.new_session(cwd="/", mcp_servers=[])).session_id

    def prompt(self, text):
        """Send a prompt, and return the task that waits for its end."""
        text = text if isinstance(text, str) else json.dumps(text)
        sending = self.connection.prompt(session_id=self.session, prompt=[acp.text_block(text)])
        return asyncio.create_task(sending)

    async def ask(self, text):
        """Send a prompt, and return why the turn ended."""
        return (await ended(self.prompt(text))).stop_reason

    async def cancel(self):
        """Press the Stop button."""
        await self.connection.cancel(session_id=self.session)

    async def hears(self, text):
        """Wait until the agent has said something."""
        await until(lambda: text in self.said(), DEADLINE)


async def ended(turn):
    """Return the answer to a prompt, or raise its error."""
    async with asyncio.timeout(DEADLINE):
        return await turn


@contextlib.asynccontextmanager
async def editing(target, *more):
    """Yield an editor that has started an agent, with a session."""
    editor = Editor()
    spawning = acp.spawn_agent_process(
        editor, *command(target, *more), cwd=ROOT, transport_kwargs={"stderr": None, "shutdown_timeout": DEADLINE}
    )
    async with spawning as (editor.connection, editor.process):
        answer = await editor.connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert answer.protocol_version == 1
        assert answer.agent_capabilities.load_session
        await editor.open()
        yield editor


@contextlib.contextmanager
def started(target, *more):
    """Start the command as an editor does, without the client."""
    with subprocess.Popen(
        command(target, *more),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send(process, method, params, request_id=1):
    """Send a request, or a notification."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    line = json.dumps(message if request_id is None else {**message, "id": request_id})
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def answer_to(process, request_id=1):
    """Return the answer to a request, past all updates."""
    for line in process.stdout:
        message = json.loads(line)
        if message.get("id") == request_id and "method" not in message:
            return message
    raise AssertionError("there is no answer")


def ask(process, method, params, request_id=1):
    """Send a request, and return its answer."""
    send(process, method, params, request_id)
    return answer_to(process, request_id)


open_session = functools.partial(ask, method="session/new", params={"cwd": "/", "mcpServers": []})


@pytest.fixture
def marks(tmp_path):
    return Marks(tmp_path)
