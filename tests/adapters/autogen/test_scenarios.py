"""Agents of AutoGen in every scenario."""

import pytest
from autogen_agentchat.teams import RoundRobinGroupChat
from bench.frameworks_unmodified.with_autogen_agentchat import AutoGen
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters import autogen


@pytest.mark.filterwarnings("ignore")  # of AutoGen
class TestAutoGen(AdapterScenarios):
    chat = AutoGen

    def install(self):
        autogen.install()


class Team(AutoGen):
    """The same agent as the only participant of a team in a team."""

    async def open(self):
        await super().open()
        self.teams = {agent: self._team(agent) for agent in (self.main, self.streaming)}

    @staticmethod
    def _team(agent):
        inner = RoundRobinGroupChat([agent], max_turns=1, name="inner")
        return RoundRobinGroupChat([inner], max_turns=1)

    async def ask(self, text):
        await self.teams[self.main].run(task=text)

    async def ask_streamed(self, text):
        self.main = self.streaming
        async for _ in self.teams[self.main].run_stream(task=text):
            pass


@pytest.mark.filterwarnings("ignore")  # of AutoGen
class TestTeam(AdapterScenarios):
    chat = Team

    def install(self):
        autogen.install()
