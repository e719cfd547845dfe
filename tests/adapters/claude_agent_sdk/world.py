"""Claude Code with a scripted model, and tools and commands that wait until the test lets them go on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    SystemMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from tests.adapters.scenarios.history import answers_in, is_valid, shape, texts_of
from tests.waiting import until

import stoppable
from stoppable import Policy
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

DEADLINE = 120  # a CLI takes seconds to start on a busy machine
PATIENT = Policy(grace=60, interrupt=60, cancel=60)
"""No rung comes before the CLI has done what it was asked to."""
FIRST, NEXT = "Book a trip, please.", "Are you still there?"


class World:
    """What an agent acts on: one tool in this process, and commands that wait for a file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server = ModelServer(default=Reply("Fine."))
        self.begun: list[str] = []
        self.booked: list[str] = []
        self.gate = Pause()
        self.held: tuple[str, ...] = ()
        self.session: str | None = None

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.release()
        self.server.__exit__(*error)

    # What the model asks for

    @staticmethod
    def booking(city):
        return ToolCall(name="mcp__trips__book", arguments=json.dumps({"city": city}), id=f"call-{city}")

    def command(self, name="one", **more):
        """Return a call of a command that waits until it is released, and then says its name."""
        path = self.home / name
        wait = f"echo $$ >{path}.begun; while [ ! -e {path}.release ]; do sleep 0.02; done"
        return self.shell(f"{wait}; echo {name} done", name, **more)

    @staticmethod
    def shell(text, name="one", **more):
        arguments = json.dumps({"command": text, "description": name, **more})
        return ToolCall(name="Bash", arguments=arguments, id=f"call-{name}")

    @staticmethod
    def delegation():
        arguments = {"description": "a trip", "prompt": "Book it.", "subagent_type": "general-purpose"}
        return ToolCall(name="Agent", arguments=json.dumps({**arguments, "run_in_background": False}), id="call-agent")

    async def until_command(self, name="one"):
        """Wait for a command to begin, and return the id of its shell."""
        path = self.home / f"{name}.begun"
        return int(await until(lambda: path.exists() and path.read_text().strip(), DEADLINE))

    def release(self):
        """Let tools and commands go on, now and later."""
        self.gate.end()
        for name in ("one", "two"):
            (self.home / f"{name}.release").touch()

    # The agent

    def options(self, **more):
        @tool("book", "Books a trip.", {"city": str})
        async def book(arguments):
            city = arguments["city"]
            self.begun.append(city)
            if city in self.held:
                await self.gate.wait()
            self.booked.append(city)
            return {"content": [{"type": "text", "text": f"booked {city}"}]}

        settings = {
            "env": environment(self.server, self.home),
            "cwd": self.home,
            "mcp_servers": {"trips": create_sdk_mcp_server("trips", tools=[book])},
            "allowed_tools": ["mcp__trips__book", "Bash", "Agent", "Task"],
            "setting_sources": [],
            "model": "claude-sonnet-4-5",
        }
        return ClaudeAgentOptions(**settings | more)

    async def ask(self, text=FIRST, heard=None, **options):
        """Execute a turn, and return its answer."""
        result = None
        async for message in query(prompt=text, options=self.options(resume=self.session, **options)):
            if isinstance(message, SystemMessage) and message.subtype == "init":
                self.session = message.data["session_id"]
            elif isinstance(message, ResultMessage):
                result = message.result
            if heard is not None:
                heard.append(message)
        return result

    def messages(self):
        """Return the messages of a turn, in pieces."""
        return query(prompt=FIRST, options=self.options(include_partial_messages=True))

    def client(self, **options):
        return ClaudeSDKClient(self.options(**options))

    async def ask_again(self):
        """Let the user write again, outside a run, and return the messages that the model got."""
        assert await self.ask(NEXT) == "Fine."
        return self.last_messages()

    def last_messages(self):
        messages = self.server.requests[-1].messages
        assert is_valid(messages), (shape(messages), messages)
        assert FIRST in texts_of(messages, "user")[0]
        assert NEXT in texts_of(messages, "user")[-1]
        return messages


def environment(server, home):
    """Return what makes a CLI talk to the scripted model only, with a home of its own."""
    return {
        "ANTHROPIC_BASE_URL": server.url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


async def stop(handle, mode="graceful", then=lambda: None):
    """Stop a run, and return its outcome, what was in flight, and the fates by the label."""
    async with asyncio.timeout(DEADLINE):
        receipt = await handle.stop(mode)
        then()
        outcome = await handle.outcome()
    assert (outcome.status, outcome.error) == ("stopped", None), outcome
    final = handle.run.receipt
    assert final.entered_after == ()
    return outcome, receipt.in_flight, {f"{entry.kind}:{entry.name}": entry.fate for entry in final.entries}


async def spawn(body, *args, policy=PATIENT, **options):
    return await stoppable.spawn(body, *args, policy=policy, **options)


def answer_in(messages, name):
    """Return the answer to a tool call."""
    return answers_in(messages)[name]
