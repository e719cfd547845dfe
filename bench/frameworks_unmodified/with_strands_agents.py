"""An agent of Strands Agents."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat


class Strands(Chat):
    PACKAGES = ("strands-agents", "openai")
    HELPER = "input"

    async def open(self):
        tools = [tool(each) for each in self.tools]
        if self.delegates:
            tools = [self.agent(tools).as_tool(name="helper", description="Books trips.")]
        self.main = self.agent(tools)

    def agent(self, tools):
        model = OpenAIModel(client_args={"base_url": self.url, "api_key": "none"}, model_id=MODEL)
        return Agent(model=model, tools=tools, system_prompt=INSTRUCTIONS, callback_handler=None)

    async def ask(self, text):
        await self.main.invoke_async(text)

    async def ask_streamed(self, text):
        async for _ in self.main.stream_async(text):
            pass
