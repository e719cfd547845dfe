"""An agent of Microsoft Agent Framework."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from stopbench.subject import INSTRUCTIONS, MODEL, Subject


class AgentFramework(Subject):
    PACKAGES = ("agent-framework-core", "agent-framework-openai")
    STOPPABLE = "stoppable[agent-framework]"

    async def open(self):
        tools = self.tools
        if self.delegates:
            tools = [self.agent(tools).as_tool(name="helper", description="Books trips.")]
        self.main = self.agent(tools)
        self.session = self.main.create_session()

    def agent(self, tools):
        client, options = OpenAIChatCompletionClient(model=MODEL, base_url=self.url, api_key="none"), {}
        if self.with_stoppable:
            from stoppable.adapters.agent_framework import Stoppable

            options["middleware"] = [Stoppable()]
        return Agent(client, INSTRUCTIONS, name="assistant", tools=tools, **options)

    async def ask(self, text):
        await self.main.run(text, session=self.session)

    async def ask_streamed(self, text):
        async for _ in self.main.run(text, session=self.session, stream=True):
            pass
