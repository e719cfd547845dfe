"""The store in memory keeps the contract of stores."""

from stoppable.stores.memory import MemoryStore
from stoppable.testing import DurableStoreContract


class TestMemoryStore(DurableStoreContract):
    """It is gone with its process, but may be opened and closed, and shared, within it."""

    events_kept = 300  # more than any other test adds

    def make_store(self, clock):
        self.kept = MemoryStore(clock, events_kept=self.events_kept)
        return self.kept

    def another_store(self, clock):
        return self.kept
