"""An agent of openai-agents."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

set_tracing_disabled(True)
TURNS = 100


class Agents(Chat):
    PACKAGES = ("openai-agents", "openai")
    HELPER = "input"

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none")
        tools = [function_tool(tool) for tool in self.tools]
        if self.delegates:
            tools = [self.agent(tools).as_tool("helper", "Books trips.", max_turns=TURNS)]
        self.main = self.agent(tools)
        self.session = SQLiteSession("session")

    def agent(self, tools):
        return Agent(name="assistant", instructions=INSTRUCTIONS, model=self.model(), tools=tools)

    def model(self):
        return OpenAIChatCompletionsModel(MODEL, self.client)

    async def close(self):
        await self.client.close()

    async def ask(self, text):
        await Runner.run(self.main, text, session=self.session, max_turns=TURNS)

    async def ask_streamed(self, text):
        result = Runner.run_streamed(self.main, text, session=self.session, max_turns=TURNS)
        async for _ in result.stream_events():
            pass
