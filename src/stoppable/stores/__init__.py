"""Stores of runs: in memory, in SQLite, in Postgres, or in your own engine (``docs/how-to/write-a-store.md``)."""

from stoppable.stores.base import Store
from stoppable.stores.urls import register_store

__all__ = ["Store", "register_store"]
