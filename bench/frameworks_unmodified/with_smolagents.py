"""An agent of smolagents, which is blocking code."""

import asyncio
import inspect

from smolagents import OpenAIModel, Tool, ToolCallingAgent
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

STEPS = 100


class FunctionTool(Tool):
    output_type = "string"

    def __init__(self, function):
        self.inputs = {}
        self.name = function.__name__
        self.description = function.__doc__
        self.function = function
        super().__init__()

    def forward(self):
        result = self.function()
        return asyncio.run(result) if inspect.iscoroutine(result) else result


class Smolagents(Chat):
    PACKAGES = ("smolagents", "openai")
    KIND = ToolCallingAgent

    async def open(self):
        self.models = []
        tools, helpers = [FunctionTool(each) for each in self.tools], []
        if self.delegates:
            helpers = [self.agent(tools, name="helper", description="Books trips.")]
            tools = []
        self.main = self.agent(tools, managed_agents=helpers)
        self.streaming = self.agent(tools, managed_agents=helpers, stream_outputs=True)

    def agent(self, tools, **options):
        self.models.append(OpenAIModel(MODEL, api_base=self.url, api_key="none"))
        return self.KIND(
            tools=tools, model=self.models[-1], instructions=INSTRUCTIONS, max_steps=STEPS, verbosity_level=0, **options
        )

    async def close(self):
        for model in self.models:
            model.client.close()

    def ask(self, text):
        self.main.run(text, reset=False)

    def ask_streamed(self, text):
        self.main = self.streaming
        for _ in self.main.run(text, reset=False, stream=True):
            pass
