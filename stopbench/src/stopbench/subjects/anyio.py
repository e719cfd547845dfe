"""A hand-written loop on anyio: a turn is a cancel scope, tools are in a task group; no line in it knows stoppable."""

import inspect

import anyio
import anyio.to_thread
from openai import AsyncOpenAI

from stopbench.subject import INSTRUCTIONS, MODEL, Subject


class Anyio(Subject):
    PACKAGES = ("anyio", "openai")
    CANCEL = "`scope.cancel()`"
    SUB_AGENT = None

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
        self.messages = [{"role": "system", "content": INSTRUCTIONS}]
        self.functions = {tool.__name__: tool for tool in self.tools}
        self.scope = None

    async def ask(self, text):
        self.scope = anyio.CancelScope()
        with self.scope:
            self.messages.append({"role": "user", "content": text})
            await self.work()
        return self.scope.cancelled_caught

    async def work(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in self.functions]
        while True:
            answer = await self.client.chat.completions.create(model=MODEL, messages=self.messages, tools=tools)
            message = answer.choices[0].message
            self.messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return
            async with anyio.create_task_group() as group:
                for call in message.tool_calls:
                    group.start_soon(self.call, call)

    async def call(self, call):
        content = "It was stopped."
        try:
            function = self.functions[call.function.name]
            content = await (
                function() if inspect.iscoroutinefunction(function) else anyio.to_thread.run_sync(function)
            )
        finally:
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    async def ask_streamed(self, text):
        self.scope = anyio.CancelScope()
        with self.scope:
            message = {"role": "assistant", "content": ""}
            self.messages.append({"role": "user", "content": text})
            stream = await self.client.chat.completions.create(model=MODEL, messages=self.messages, stream=True)
            self.messages.append(message)
            async for chunk in stream:
                message["content"] += chunk.choices[0].delta.content or ""
        return self.scope.cancelled_caught

    def cancel(self, turn):
        if self.scope is None:
            turn.cancel()  # nothing has begun that could have a scope
        else:
            self.scope.cancel()

    def state(self, result, error):
        return "stopped" if result is True else super().state(result, error)
