"""An agent of Pydantic AI."""

from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, UsageLimits, capture_run_messages
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject

LIMITS = UsageLimits(request_limit=STEPS)


class PydanticAI(Subject):
    PACKAGES = ("pydantic-ai-slim[openai]",)
    STOPPABLE = "stoppable[pydantic-ai]"

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
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
        model, options = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=self.client)), {}
        if self.with_stoppable:
            from stoppable.adapters.pydantic_ai import Stoppable

            options["capabilities"] = [Stoppable()]
        return Agent(model, instructions=INSTRUCTIONS, tools=[Tool(tool) for tool in tools], **options)

    async def ask(self, text):
        with capture_run_messages() as messages:
            try:
                await self.main.run(text, message_history=self.messages, usage_limits=LIMITS)
            finally:
                self.keep(messages)

    async def ask_streamed(self, text):
        with capture_run_messages() as messages:
            try:
                async with self.main.run_stream(text, message_history=self.messages, usage_limits=LIMITS) as result:
                    async for _ in result.stream_text(delta=True):
                        pass
            finally:
                self.keep(messages)

    def keep(self, messages):
        if self.with_stoppable:
            import stoppable
            from stoppable.adapters.pydantic_ai import history_of

            self.messages = history_of(stoppable.current_run(), self.messages)
        else:
            self.messages = list(messages)
