"""An agent of Google ADK with a runner of its own; its models are called by LiteLLM."""

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types

from stopbench.subject import INSTRUCTIONS, MODEL, Subject


class GoogleADK(Subject):
    PACKAGES = ("google-adk", "litellm", "mcp")  # LiteLLM imports mcp, and does not ask for it
    STOPPABLE = "stoppable[adk]"
    SUB_AGENT = "request"

    async def open(self):
        tools = self.tools
        if self.delegates:
            tools = [AgentTool(self.agent("helper", tools))]
        self.runner = InMemoryRunner(agent=self.agent("assistant", tools), app_name="app")
        if self.with_stoppable:
            from stoppable.adapters.adk import wrap

            self.runner = wrap(self.runner)
        await self.runner.session_service.create_session(app_name="app", user_id="user", session_id="session")

    def agent(self, name, tools):
        model = LiteLlm(f"openai/{MODEL}", api_base=self.url, api_key="none", num_retries=0)
        return Agent(name=name, model=model, instruction=INSTRUCTIONS, description="Books trips.", tools=tools)

    async def ask(self, text, mode=StreamingMode.NONE):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        config = RunConfig(streaming_mode=mode)
        async for _ in self.runner.run_async(
            user_id="user", session_id="session", new_message=message, run_config=config
        ):
            pass

    async def ask_streamed(self, text):
        await self.ask(text, StreamingMode.SSE)
