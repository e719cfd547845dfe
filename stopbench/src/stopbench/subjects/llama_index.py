"""An agent of LlamaIndex."""

import inspect

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import Memory
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from workflows.errors import WorkflowCancelledByUser

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject


class LlamaIndex(Subject):
    PACKAGES = ("llama-index-core", "llama-index-workflows", "llama-index-llms-openai-like")
    STOPPABLE = "stoppable[llama-index]"
    CANCEL = "`await handler.cancel_run()`"

    @classmethod
    def prepare(cls):
        import stoppable.adapters.llama_index

        stoppable.adapters.llama_index.install()

    async def open(self):
        tools = [self.tool(each) for each in self.tools]
        if self.delegates:
            booker = self.agent(tools)

            async def helper(task: str) -> str:
                """Let another agent book the trip."""
                return str(await booker.run(task, max_iterations=STEPS))

            tools = [self.tool(helper)]
        self.main, self.memory, self.handler = self.agent(tools), Memory.from_defaults(), None

    def tool(self, function):
        options = {"async_fn": function} if inspect.iscoroutinefunction(function) else {"fn": function}
        return FunctionTool.from_defaults(**options)

    def agent(self, tools):
        options = {"is_chat_model": True, "is_function_calling_model": True, "max_retries": 0}
        llm = OpenAILike(model=MODEL, api_base=self.url, api_key="none", **options)
        return FunctionAgent(tools=tools, llm=llm, system_prompt=INSTRUCTIONS)

    async def ask(self, text):
        self.handler = self.main.run(text, memory=self.memory, max_iterations=STEPS)
        await self.handler

    async def ask_streamed(self, text):
        self.handler = self.main.run(text, memory=self.memory, max_iterations=STEPS)
        async for _ in self.handler.stream_events():
            pass
        await self.handler

    async def cancel(self, turn):
        if self.handler is None:
            turn.cancel()  # nothing has begun that could have a handler
        else:
            await self.handler.cancel_run()

    def state(self, result, error):
        return "stopped" if isinstance(error, WorkflowCancelledByUser) else super().state(result, error)
