"""An agent of Strands Agents."""

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from stopbench.subject import INSTRUCTIONS, MODEL, Subject


class Strands(Subject):
    PACKAGES = ("strands-agents[openai]",)
    STOPPABLE = "stoppable[strands]"
    CANCEL = "`agent.cancel()`"
    SUB_AGENT = "input"

    @classmethod
    def prepare(cls):
        import stoppable.adapters.strands

        stoppable.adapters.strands.install()

    async def open(self):
        tools = [tool(each) for each in self.tools]
        if self.delegates:
            tools = [self.agent(tools).as_tool(name="helper", description="Books trips.")]
        self.main = self.agent(tools)

    def agent(self, tools):
        model = OpenAIModel(client_args={"base_url": self.url, "api_key": "none"}, model_id=MODEL)
        return Agent(model=model, tools=tools, system_prompt=INSTRUCTIONS, callback_handler=None)

    async def ask(self, text):
        return (await self.main.invoke_async(text)).stop_reason

    async def ask_streamed(self, text):
        reason = None
        async for event in self.main.stream_async(text):
            if "result" in event:
                reason = event["result"].stop_reason
        return reason

    def cancel(self, turn):
        self.main.cancel()

    def state(self, result, error):
        return "stopped" if result == "cancelled" else super().state(result, error)
