"""An agent of Pydantic AI."""

from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, UsageLimits, capture_run_messages
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

LIMITS = UsageLimits(request_limit=100)


class PydanticAI(Chat):
    PACKAGES = ("pydantic-ai-slim", "openai")

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none")
        self.messages = []
        tools = self.tools
        if self.delegates:
            booker = self.agent(tools)

            async def helper(task: str) -> str:
                """Let another agent book the trip."""
                return (await booker.run(task, usage_limits=LIMITS)).output

            tools = [helper]
        self.main = self.agent(tools)

    def agent(self, tools):
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=self.client))
        return Agent(model, instructions=INSTRUCTIONS, tools=[Tool(tool) for tool in tools])

    async def close(self):
        await self.client.close()

    async def ask(self, text):
        with capture_run_messages() as messages:
            try:
                await self.main.run(text, message_history=self.messages, usage_limits=LIMITS)
            finally:
                self.messages = list(messages)

    async def ask_streamed(self, text):
        with capture_run_messages() as messages:
            try:
                async with self.main.run_stream(text, message_history=self.messages, usage_limits=LIMITS) as result:
                    async for _ in result.stream_text(delta=True):
                        pass
            finally:
                self.messages = list(messages)
