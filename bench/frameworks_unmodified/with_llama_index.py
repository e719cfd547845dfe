"""An agent of LlamaIndex."""

import inspect

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

STEPS = 100


class LlamaIndex(Chat):
    PACKAGES = ("llama-index-core", "llama-index-workflows", "openai")

    async def open(self):
        tools = [
            FunctionTool.from_defaults(async_fn=each)
            if inspect.iscoroutinefunction(each)
            else FunctionTool.from_defaults(each)
            for each in self.tools
        ]
        if self.delegates:
            booker = self.agent(tools)

            async def helper(task: str) -> str:
                """Let another agent book the trip."""
                return str(await booker.run(task, max_iterations=STEPS))

            tools = [FunctionTool.from_defaults(async_fn=helper)]
        self.main = self.agent(tools)
        self.memory = Memory.from_defaults()

    def agent(self, tools):
        llm = OpenAILike(
            model=MODEL, api_base=self.url, api_key="none", is_chat_model=True, is_function_calling_model=True
        )
        return FunctionAgent(tools=tools, llm=llm, system_prompt=INSTRUCTIONS)

    async def ask(self, text):
        await self.main.run(text, memory=self.memory, max_iterations=STEPS)

    async def ask_streamed(self, text):
        handler = self.main.run(text, memory=self.memory, max_iterations=STEPS)
        async for _ in handler.stream_events():
            pass
        await handler
