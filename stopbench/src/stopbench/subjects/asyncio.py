"""A hand-written loop on asyncio and the openai client; it puts each message into the history as it arrives."""

import asyncio
import inspect

from openai import AsyncOpenAI

from stopbench.subject import INSTRUCTIONS, MODEL, Subject


class Asyncio(Subject):
    PACKAGES = ("openai",)

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
        self.messages = [{"role": "system", "content": INSTRUCTIONS}]
        tools = {tool.__name__: tool for tool in self.tools}
        if self.with_stoppable:
            import stoppable

            tools = {name: stoppable.boundary("tool", name)(tool) for name, tool in tools.items()}
        self.functions = {"helper": self.helper} if self.delegates else tools
        self.helper_functions = tools

    async def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        await self.work(self.messages, self.functions)

    async def helper(self, task=""):
        messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": task}]
        return await self.work(messages, self.helper_functions)

    async def work(self, messages, functions):
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in functions]
        while True:
            answer = await self.client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return message.content
            if self.with_stoppable:
                await self.call_sealed(message.tool_calls, messages, functions)
            else:
                results = await asyncio.gather(*(self.call(each, functions) for each in message.tool_calls))
                messages += [self.result(*each) for each in zip(message.tool_calls, results, strict=True)]

    async def call(self, call, functions):
        function = functions[call.function.name]
        return await (function() if inspect.iscoroutinefunction(function) else asyncio.to_thread(function))

    def result(self, call, content):
        return {"role": "tool", "tool_call_id": call.id, "content": content}

    async def call_sealed(self, calls, messages, functions):
        """Do the same, and after a stop write what became of each call."""
        from stoppable.adapters.turn import Turn

        turn = Turn()
        turn.request(*(call.id for call in calls))

        async def call_noted(call):
            turn.begin(call.id)
            turn.finish(call.id, await self.call(call, functions))

        try:
            await asyncio.gather(*map(call_noted, calls))
        finally:
            messages += [self.result(call, turn.answer(call.id).text) for call in calls]

    async def ask_streamed(self, text):
        message = {"role": "assistant", "content": ""}
        self.messages.append({"role": "user", "content": text})
        stream = await self.client.chat.completions.create(model=MODEL, messages=self.messages, stream=True)
        self.messages.append(message)
        async for chunk in stream:
            message["content"] += chunk.choices[0].delta.content or ""
