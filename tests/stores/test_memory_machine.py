"""Random lives of runs in the store in memory."""

from stoppable.stores.memory import MemoryStore

from .machine import MAY_TAKE_LONG, SETTINGS, StoreMachine


class MemoryMachine(StoreMachine):
    def make_store(self, clock):
        return MemoryStore(clock)


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = SETTINGS
pytestmark = MAY_TAKE_LONG
