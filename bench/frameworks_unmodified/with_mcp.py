"""A loop around the openai client whose tools are those of an MCP server, which it talks to over stdio."""

import asyncio
import contextlib
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from openai import AsyncOpenAI
from tests.adapters.scenarios.chat import MODEL, Chat

from frameworks_unmodified import mcp_server


class MCP(Chat):
    PACKAGES = ("mcp", "openai")
    HELPER = None

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none")
        self.messages = []
        self.stack = contextlib.AsyncExitStack()
        server = StdioServerParameters(command=sys.executable, args=[mcp_server.__file__, str(self.world.path)])
        streams = await self.stack.enter_async_context(stdio_client(server))
        self.session = await self.stack.enter_async_context(ClientSession(*streams))
        await self.session.initialize()

    async def close(self):
        await self.stack.aclose()
        await self.client.close()

    async def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        tools = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.input_schema}}
            for tool in (await self.session.list_tools()).tools
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
        self.messages.append({"role": "user", "content": text})
        words = []
        stream = await self.client.chat.completions.create(model=MODEL, messages=self.messages, stream=True)
        async for chunk in stream:
            words += [choice.delta.content or "" for choice in chunk.choices]
        self.messages.append({"role": "assistant", "content": "".join(words)})
