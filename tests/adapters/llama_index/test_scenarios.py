"""Agents of LlamaIndex in every scenario."""

import pytest
from bench.frameworks_unmodified.with_llama_index import LlamaIndex
from llama_index.core.memory import ChatMemoryBuffer
from tests.adapters.scenarios.suite import AdapterScenarios

from stoppable.adapters import llama_index


class Chat(LlamaIndex):
    async def open(self):
        await super().open()
        self.memory = ChatMemoryBuffer.from_defaults()  # the other one never closes its database, nor ends its thread


@pytest.mark.filterwarnings("ignore")  # of LlamaIndex
class TestLlamaIndex(AdapterScenarios):
    chat = Chat
    always_streams = True

    def install(self):
        llama_index.install()
