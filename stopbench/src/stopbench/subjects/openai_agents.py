"""An agent of the OpenAI Agents SDK; streams are cancelled with the result's own `cancel()`."""

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from stopbench.subject import INSTRUCTIONS, MODEL, STEPS, Subject

set_tracing_disabled(True)


class OpenAIAgents(Subject):
    PACKAGES = ("openai-agents", "openai")
    STOPPABLE = "stoppable[openai-agents]"
    CANCEL = "`task.cancel()`; `result.cancel()` of streams"
    SUB_AGENT = "input"

    @classmethod
    def prepare(cls):
        import stoppable.adapters.openai_agents

        stoppable.adapters.openai_agents.install()

    async def open(self):
        self.client = AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)
        tools = [function_tool(tool) for tool in self.tools]
        if self.delegates:
            tools = [self.agent(tools).as_tool("helper", "Books trips.", max_turns=STEPS)]
        self.main, self.session, self.stream = self.agent(tools), SQLiteSession("session"), None

    def agent(self, tools):
        model = OpenAIChatCompletionsModel(MODEL, self.client)
        return Agent(name="assistant", instructions=INSTRUCTIONS, model=model, tools=tools)

    async def ask(self, text):
        self.stream = None
        await Runner.run(self.main, text, session=self.session, max_turns=STEPS)

    async def ask_streamed(self, text):
        self.stream = Runner.run_streamed(self.main, text, session=self.session, max_turns=STEPS)
        async for _ in self.stream.stream_events():
            pass

    def cancel(self, turn):
        if self.stream is None:
            turn.cancel()
        else:
            self.is_cancelled = True
            self.stream.cancel()

    is_cancelled = False

    def state(self, result, error):
        # A stream that was cancelled ends without an error, and has no final output.
        if error is None and self.is_cancelled and self.stream is not None and self.stream.final_output is None:
            return "stopped"
        return super().state(result, error)
