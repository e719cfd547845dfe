"""Agents of openai-agents in every scenario."""

from agents import OpenAIResponsesModel
from bench.frameworks_unmodified.with_openai_agents import Agents
from tests.adapters.scenarios.chat import MODEL
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters import openai_agents


class TestOpenAIAgents(AdapterScenarios):
    chat = Agents

    def install(self):
        openai_agents.install()


class AgentsOfTheResponsesApi(Agents):
    def model(self):
        return OpenAIResponsesModel(MODEL, self.client)


class TestOpenAIAgentsOfTheResponsesApi(TestOpenAIAgents):
    chat = AgentsOfTheResponsesApi
