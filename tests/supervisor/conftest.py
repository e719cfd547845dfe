"""Every test of the supervisor is made with each embedded store."""

import pytest

from stoppable.stores.memory import MemoryStore


def _memory(tmp_path):
    return MemoryStore()


STORES = {"memory": _memory}


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path)
