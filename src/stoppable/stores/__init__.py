"""Where runs are kept: in memory, in a SQLite file, or in an engine of yours (``docs/how-to/write-a-store.md``)."""

from stoppable.stores.base import Store
from stoppable.stores.urls import register_store

__all__ = ["Store", "register_store"]
