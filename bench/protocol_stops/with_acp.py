"""ACP: the client of agent-client-protocol, and an agent of it whose ``cancel()`` cancels the task of the turn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator

import acp
from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse
from bench.protocol_stops.agent import answer
from bench.protocol_stops.conversation import Told


class Plain(acp.Agent):
    def on_connect(self, conn):
        self._client = conn

    async def initialize(self, **_):
        return InitializeResponse(protocol_version=acp.PROTOCOL_VERSION)

    async def new_session(self, **_):
        return NewSessionResponse(session_id="one")

    async def prompt(self, session_id, prompt, **_):
        async def say(word: str) -> None:
            await self._client.session_update(session_id, acp.update_agent_message_text(word))

        self._turn = asyncio.create_task(answer(prompt[0].text, say))
        try:
            await say(await self._turn)
        except asyncio.CancelledError:
            return PromptResponse(stop_reason="cancelled")
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, **_):
        self._turn.cancel()


class Editor:
    """A client with one session."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.connection: acp.ClientSideConnection
        self.session, self.can_load = "", False

    async def session_update(self, *, update, **_):
        if update.session_update == "agent_message_chunk":
            self.words.append(update.content.text)

    def _prompt(self, text: str):
        return self.connection.prompt(session_id=self.session, prompt=[acp.text_block(text)])

    async def begin(self, text: str) -> None:
        self._turn = asyncio.create_task(self._prompt(text))

    async def cancel(self) -> Told:
        await self.connection.cancel(session_id=self.session)
        return Told(words=f"`{(await self._turn).stop_reason}`", is_end=True)

    async def end(self) -> str:
        return ""

    async def ask(self, text: str) -> str:
        self.words.clear()
        await self._prompt(text)
        return "".join(self.words)

    async def kept(self) -> str:
        if not self.can_load:
            return ""
        self.words.clear()
        await self.connection.load_session(cwd="/", session_id=self.session, mcp_servers=[])
        return "".join(self.words)


@contextlib.asynccontextmanager
async def opened(command: str) -> AsyncIterator[Editor]:
    editor = Editor()
    spawning = acp.spawn_agent_process(editor, *json.loads(command))
    async with spawning as (editor.connection, _):
        said = await editor.connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        editor.can_load = bool(said.agent_capabilities and said.agent_capabilities.load_session)
        editor.session = (await editor.connection.new_session(cwd="/", mcp_servers=[])).session_id
        yield editor


if __name__ == "__main__":
    sys.exit(asyncio.run(acp.run_agent(Plain())))
