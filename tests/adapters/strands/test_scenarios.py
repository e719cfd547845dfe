"""Agents of Strands in every scenario."""

from bench.frameworks_unmodified.with_strands_agents import Strands
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters import strands


class TestStrands(AdapterScenarios):
    chat = Strands
    always_streams = True

    def install(self):
        strands.install()
