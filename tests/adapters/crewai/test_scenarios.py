"""Crews and agents of CrewAI in every scenario, in blocking code and in tasks."""

from bench.frameworks_unmodified.with_crewai import STEPS, CrewAI, crew
from crewai import LLM, Agent
from crewai.tools import tool
from tests.adapters.scenarios.chat import INSTRUCTIONS, MODEL, Chat
from tests.adapters.scenarios.history import is_valid
from tests.adapters.scenarios.suite import NEXT, AdapterScenarios, ended

import stoppable
from stoppable.adapters import crewai


class CrewScenarios(AdapterScenarios):
    """A crew has no conversation: the next message is another task, and what was done is in `agent.last_messages`."""

    chat = CrewAI
    keeps_text_beside_calls = False

    def install(self):
        crewai.install()

    async def _ask_again(self, chat, server):
        done = list(chat.main.last_messages)
        assert is_valid(done)
        outcome = await ended(await self.start(chat, NEXT, is_streamed=False))
        assert outcome.status == "completed", outcome
        messages = server.requests[-1].messages
        assert [message["role"] for message in messages] == ["system", "user"]
        assert NEXT in messages[-1]["content"]
        return done


class TestCrew(CrewScenarios):
    pass


class BlockingCrew(CrewAI):
    def ask(self, text):
        crew(self.main, text).kickoff()

    def ask_streamed(self, text):
        for _ in crew(self.main, text, stream=True).kickoff():
            pass


class TestBlockingCrew(CrewScenarios):
    chat = BlockingCrew


class Talk(Chat):
    """An agent without a crew, to which a program hands the messages of a conversation."""

    async def open(self):
        tools = [tool(each.__name__)(each) for each in self.tools]
        if self.delegates:
            booker = self.agent(tools)

            def helper(task: str) -> str:
                """Let another agent book the trip."""
                return booker.kickoff(task).raw

            tools = [tool("helper")(helper)]
        self.main, self.history = self.agent(tools), []

    def agent(self, tools):
        llm = LLM(model=f"openai/{MODEL}", base_url=self.url, api_key="none")
        return Agent(role="assistant", goal=INSTRUCTIONS, backstory="", llm=llm, tools=tools, max_iter=STEPS)

    def ask(self, text):
        messages = [*self.history, {"role": "user", "content": text}]
        try:
            said = self.main.kickoff(messages).messages
        except stoppable.AgentStopped:
            said = self.main.last_messages
            raise
        finally:
            self.history = [each for each in said if each["role"] != "system"]

    def ask_streamed(self, text):
        self.main.llm.stream = True
        self.ask(text)


class TestAgent(AdapterScenarios):
    chat = Talk
    keeps_text_beside_calls = False

    def install(self):
        crewai.install()
