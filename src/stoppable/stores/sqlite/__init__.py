"""Keeps runs in one SQLite file, which several processes of one machine may share."""

from stoppable.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
