"""The store in a SQLite file keeps the contract of stores."""

import pytest

from stoppable.stores.sqlite import SqliteStore
from stoppable.testing import DurableStoreContract


class TestSqliteStore(DurableStoreContract):
    events_kept = 300  # more than any other test adds

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "runs.db"

    def make_store(self, clock):
        return SqliteStore(self.path, clock=clock, lease_clock=clock, events_kept=self.events_kept)

    another_store = make_store
