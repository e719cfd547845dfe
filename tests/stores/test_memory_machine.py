"""Random lives of runs in the store in memory."""

from stoppable.stores.memory import MemoryStore

from .machine import SETTINGS, StoreMachine


class MemoryMachine(StoreMachine):
    def make_store(self, clock):
        return MemoryStore(clock)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = SETTINGS
