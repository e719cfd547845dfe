"""An agent of smolagents, which is blocking code."""

import asyncio

from smolagents import OpenAIModel, ToolCallingAgent, tool

from frameworks_unmodified.chat import INSTRUCTIONS, MODEL, Chat

STEPS = 100


class Smolagents(Chat):
    PACKAGES = ("smolagents", "openai")

    async def open(self):
        sync, task = self.tools

        def book_async() -> str:
            """Book a trip in a task."""
            return asyncio.run(task())

        tools, helpers = [tool(sync), tool(book_async)], []
        if self.delegates:
            helpers = [self.agent(tools, name="helper", description="Books trips.")]
            tools = []
        self.main = self.agent(tools, managed_agents=helpers)
        self.streaming = self.agent(tools, managed_agents=helpers, stream_outputs=True)

    def agent(self, tools, **options):
        model = OpenAIModel(MODEL, api_base=self.url, api_key="none")
        return ToolCallingAgent(
            tools=tools, model=model, instructions=INSTRUCTIONS, max_steps=STEPS, verbosity_level=0, **options
        )

    def ask(self, text):
        self.main.run(text, reset=False)

    def ask_streamed(self, text):
        self.main = self.streaming
        for _ in self.main.run(text, reset=False, stream=True):
            pass
