"""An agent of smolagents, which is blocking code; it is interrupted from another thread."""

import asyncio
import inspect

from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.utils import AgentError

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject


class FunctionTool(Tool):
    output_type = "string"

    def __init__(self, function):
        self.inputs, self.name, self.description, self.function = {}, function.__name__, function.__doc__, function
        super().__init__()

    def forward(self):
        result = self.function()
        return asyncio.run(result) if inspect.iscoroutine(result) else result


class Smolagents(Subject):
    PACKAGES = ("smolagents[openai]",)
    STOPPABLE = "stoppable[smolagents]"
    CANCEL = "`agent.interrupt()`"
    FINAL_TOOL = "final_answer"

    @classmethod
    def prepare(cls):
        import stoppable.adapters.smolagents

        stoppable.adapters.smolagents.install()

    async def open(self):
        tools, helpers = [FunctionTool(each) for each in self.tools], []
        if self.delegates:
            helpers, tools = [self.agent(tools, name="helper", description="Books trips.")], []
        self.main = self.agent(tools, managed_agents=helpers)
        self.streaming = self.agent(tools, managed_agents=helpers, stream_outputs=True)

    def agent(self, tools, **options):
        model = OpenAIModel(MODEL, api_base=self.url, api_key="none")
        options |= {"instructions": INSTRUCTIONS, "max_steps": STEPS, "verbosity_level": 0}
        return ToolCallingAgent(tools=tools, model=model, **options)

    def ask(self, text):
        self.main.run(text, reset=False)

    def ask_streamed(self, text):
        self.main = self.streaming
        for _ in self.main.run(text, reset=False, stream=True):
            pass

    def cancel(self, turn):
        self.main.interrupt()

    def state(self, result, error):
        is_interrupted = isinstance(error, AgentError) and "interrupted" in str(error)
        return "stopped" if is_interrupted else super().state(result, error)
