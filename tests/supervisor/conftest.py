"""Every test of the supervisor is made with each embedded store."""

import pytest

from stoppable.stores.memory import MemoryStore
from stoppable.stores.sqlite import SqliteStore


def _memory(tmp_path):
    return MemoryStore()


def _sqlite(tmp_path):
    return SqliteStore(tmp_path / "runs.db")


STORES = {"memory": _memory, "sqlite": _sqlite}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)
