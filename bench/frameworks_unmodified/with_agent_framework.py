"""An agent of Microsoft Agent Framework."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat


class AgentFramework(Chat):
    PACKAGES = ("agent-framework-core", "agent-framework-openai", "openai")

    async def open(self):
        tools = self.tools
        if self.delegates:
            tools = [self.agent(tools).as_tool(name="helper", description="Books trips.")]
        self.main = self.agent(tools)
        self.session = self.main.create_session()

    def agent(self, tools):
        client = OpenAIChatCompletionClient(model=MODEL, base_url=self.url, api_key="none")
        return Agent(client, INSTRUCTIONS, name="assistant", tools=tools)

    async def ask(self, text):
        await self.main.run(text, session=self.session)

    async def ask_streamed(self, text):
        async for _ in self.main.run(text, session=self.session, stream=True):
            pass
