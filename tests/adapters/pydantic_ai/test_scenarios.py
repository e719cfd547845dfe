"""Agents of Pydantic AI in every scenario."""

from bench.frameworks_unmodified.with_pydantic_ai import LIMITS, PydanticAI
from pydantic_ai import Agent
from tests.adapters.scenarios.chat import INSTRUCTIONS
from tests.adapters.scenarios.suite import AdapterScenarios

import stoppable
from stoppable.adapters.pydantic_ai import Stoppable, history_of


class StoppableAgents(PydanticAI):
    def agent(self, tools):
        plain = super().agent(tools)
        return Agent(plain.model, tools=tools, instructions=INSTRUCTIONS, capabilities=[Stoppable()])

    async def ask(self, text):
        try:
            await self.main.run(text, message_history=self.messages, usage_limits=LIMITS)
        finally:
            self.messages = history_of(stoppable.current_run(), self.messages)

    async def ask_streamed(self, text):
        try:
            async with self.main.run_stream_events(text, message_history=self.messages, usage_limits=LIMITS) as events:
                async for _ in events:
                    pass
        finally:
            self.messages = history_of(stoppable.current_run(), self.messages)


class TestPydanticAI(AdapterScenarios):
    chat = StoppableAgents
