"""A hand-written loop whose tools are those of an MCP server in another process, over stdio."""

import asyncio
import contextlib
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI

from stopbench.subject import MODEL, Subject

SERVER = """
import sys
from mcp.server import MCPServer
sys.path.insert(0, sys.argv[1])
from stopbench.tools import make_tools
server = MCPServer("trips", log_level="ERROR")
for tool in make_tools(sys.argv[2]):
    server.tool()(tool)
if sys.argv[3] == "True":
    from stoppable.adapters.mcp import supervise
    supervise(server)
server.run("stdio")
"""


class MCP(Subject):
    PACKAGES = ("mcp", "openai")
    STOPPABLE = "stoppable[mcp]"
    CANCEL = "`task.cancel()`, which sends `notifications/cancelled`"
    SUB_AGENT = None
    SERVES = True

    @classmethod
    def prepare(cls):
        import stoppable.adapters.mcp

        stoppable.adapters.mcp.install()

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
        self.messages, self.stack = [], contextlib.AsyncExitStack()
        arguments = ["-c", SERVER, str(self.PACKAGE), str(self.log), str(self.with_stoppable)]
        streams = await self.stack.enter_async_context(
            stdio_client(StdioServerParameters(command=sys.executable, args=arguments))
        )
        self.session = await self.stack.enter_async_context(ClientSession(*streams))
        await self.session.initialize()

    async def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        listed = (await self.session.list_tools()).tools
        tools = [
            {"type": "function", "function": {"name": each.name, "parameters": each.input_schema}} for each in listed
        ]
        while True:
            answer = await self.client.chat.completions.create(model=MODEL, messages=self.messages, tools=tools)
            message = answer.choices[0].message
            calls = message.tool_calls or []
            results = await asyncio.gather(*map(self.call, calls))
            # Together, so that the conversation has no call without a result.
            self.messages += [message.model_dump(exclude_none=True), *results]
            if not calls:
                return

    async def call(self, call):
        result = await self.session.call_tool(call.function.name, json.loads(call.function.arguments))
        return {"role": "tool", "tool_call_id": call.id, "content": str(result.content)}

    async def ask_streamed(self, text):
        message = {"role": "assistant", "content": ""}
        self.messages.append({"role": "user", "content": text})
        stream = await self.client.chat.completions.create(model=MODEL, messages=self.messages, stream=True)
        self.messages.append(message)
        async for chunk in stream:
            message["content"] += chunk.choices[0].delta.content or ""
