"""Keeps runs in the memory of this process; they are lost when it ends."""

from stoppable.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
