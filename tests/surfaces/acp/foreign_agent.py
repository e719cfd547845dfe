"""A small agent of another make, as a process: ``python foreign_agent.py KIND FOLDER``.

``honest`` ends its command when it is cancelled, ``deaf`` does nothing, ``liar`` says ``cancelled`` while its command
goes on, in a session of its own. All have begun when the file ``begun`` is in the folder; the command's pid is in it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import acp
from acp.schema import InitializeResponse, NewSessionResponse, PermissionOption, PromptResponse, ToolCallUpdate


class Agent:
    """One agent of a kind."""

    def __init__(self, kind, folder):
        self.kind, self.folder = kind, Path(folder)
        self.cancelled = asyncio.Event()

    def on_connect(self, client):
        self.client = client

    async def initialize(self, protocol_version, **_):
        return InitializeResponse(protocol_version=acp.PROTOCOL_VERSION)

    async def new_session(self, cwd, **_):
        self.cwd = cwd
        return NewSessionResponse(session_id="one")

    async def say(self, text):
        await self.client.session_update("one", acp.update_agent_message_text(text))

    async def prompt(self, session_id, prompt, **_):
        text = prompt[0].text
        if text == "fail":
            raise acp.RequestError(-32603, "the tool is broken")
        if text == "exit":
            os._exit(3)
        if text == "ask":
            return await self.ask()
        if text != "work":
            await self.say(f"{text} in ")
            await self.say(self.cwd)
            return PromptResponse(stop_reason="end_turn")
        await self.say("so far")
        command = subprocess.Popen(["sleep", "600"], start_new_session=self.kind == "liar")
        (self.folder / "pid").write_text(str(command.pid))
        (self.folder / "begun").touch()
        await self.cancelled.wait()
        if self.kind == "honest":
            command.send_signal(signal.SIGKILL)
            command.wait()
            (self.folder / "ended").touch()
        return PromptResponse(stop_reason="cancelled")

    async def ask(self):
        options = [PermissionOption(option_id=kind, name=kind, kind=kind) for kind in ("allow_once", "reject_once")]
        call = ToolCallUpdate(tool_call_id="1", title="rm")
        answer = await self.client.request_permission(session_id="one", tool_call=call, options=options)
        await self.say(answer.outcome.option_id)
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id, **_):
        if self.kind != "deaf":
            self.cancelled.set()


async def main():
    await acp.run_agent(Agent(*sys.argv[1:]))


if __name__ == "__main__":
    asyncio.run(main())
