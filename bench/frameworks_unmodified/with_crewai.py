"""A crew of CrewAI with one agent. It has no session: every message of the user is a new task."""

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat

STEPS = 100


class CrewAI(Chat):
    PACKAGES = ("crewai", "openai")

    async def open(self):
        tools = [tool(each.__name__)(each) for each in self.tools]
        if self.delegates:
            booker = self.agent(tools)

            async def helper(task: str) -> str:
                """Let another agent book the trip."""
                return str(await crew(booker, task).akickoff())

            tools = [tool("helper")(helper)]
        self.main = self.agent(tools)

    def agent(self, tools):
        llm = LLM(model=f"openai/{MODEL}", base_url=self.url, api_key="none")
        return Agent(role="assistant", goal=INSTRUCTIONS, backstory="", llm=llm, tools=tools, max_iter=STEPS)

    async def ask(self, text):
        await crew(self.main, text).akickoff()

    async def ask_streamed(self, text):
        async for _ in await crew(self.main, text, stream=True).akickoff():
            pass


def crew(agent, text, **options):
    return Crew(agents=[agent], tasks=[Task(description=text, expected_output="an answer", agent=agent)], **options)
