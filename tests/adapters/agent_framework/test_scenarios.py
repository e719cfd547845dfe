"""Agents of Microsoft Agent Framework in every scenario."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient
from bench.frameworks_unmodified.with_agent_framework import AgentFramework
from openai import AsyncOpenAI
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters.agent_framework import Stoppable


class StoppableAgents(AgentFramework):
    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none")
        await super().open()

    def agent(self, tools):
        client = OpenAIChatCompletionClient(model=MODEL, async_client=self.client)
        return Agent(client, INSTRUCTIONS, name="assistant", tools=tools, middleware=[Stoppable()])

    async def close(self):
        await self.client.close()


class TestAgentFramework(AdapterScenarios):
    chat = StoppableAgents
