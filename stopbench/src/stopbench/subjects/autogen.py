"""An agent of AutoGen AgentChat."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.tools import AgentTool
from autogen_core import CancellationToken
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)


class AutoGen(Subject):
    PACKAGES = ("autogen-agentchat", "autogen-ext[openai]")
    STOPPABLE = "stoppable[autogen]"
    CANCEL = "`cancellation_token.cancel()`"

    @classmethod
    def prepare(cls):
        import stoppable.adapters.autogen

        stoppable.adapters.autogen.install()

    async def open(self):
        self.client = OpenAIChatCompletionClient(model=MODEL, base_url=self.url, api_key="none", model_info=INFO)
        tools = self.tools
        if self.delegates:
            tools = [AgentTool(self.agent("helper", tools))]
        self.main = self.agent("assistant", tools)
        self.streaming = self.agent("streaming", tools, model_client_stream=True)
        self.token = CancellationToken()

    def agent(self, name, tools, **options):
        options |= {"system_message": INSTRUCTIONS, "max_tool_iterations": STEPS, "description": "Books trips."}
        return AssistantAgent(name, self.client, tools=tools, **options)

    async def ask(self, text):
        await self.main.run(task=text, cancellation_token=self.new_token())

    async def ask_streamed(self, text):
        self.main = self.streaming
        async for _ in self.main.run_stream(task=text, cancellation_token=self.new_token()):
            pass

    def new_token(self):
        if self.with_stoppable:
            return None
        # One that was cancelled before its turn has begun is that of this turn.
        token, self.token = self.token, CancellationToken()
        self.current = token
        return token

    current = None

    def cancel(self, turn):
        (self.current or self.token).cancel()
