"""An agent of AutoGen AgentChat."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
STEPS = 100


class AutoGen(Chat):
    PACKAGES = ("autogen-agentchat", "openai")

    async def open(self):
        self.client = OpenAIChatCompletionClient(model=MODEL, base_url=self.url, api_key="none", model_info=INFO)
        tools = self.tools
        if self.delegates:
            tools = [AgentTool(self.agent("helper", tools))]
        self.main = self.agent("assistant", tools)
        self.streaming = self.agent("streaming", tools, model_client_stream=True)

    def agent(self, name, tools, **options):
        return AssistantAgent(
            name,
            self.client,
            description="Books trips.",
            tools=tools,
            system_message=INSTRUCTIONS,
            max_tool_iterations=STEPS,
            **options,
        )

    async def close(self):
        await self.client.close()

    async def ask(self, text):
        await self.main.run(task=text)

    async def ask_streamed(self, text):
        self.main = self.streaming
        async for _ in self.main.run_stream(task=text):
            pass
