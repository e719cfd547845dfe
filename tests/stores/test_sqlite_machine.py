"""Random lives of runs in a SQLite file."""

import tempfile
from pathlib import Path

from hypothesis import settings

from stoppable.stores.sqlite import SqliteStore

from .machine import MAY_TAKE_LONG, SETTINGS, StoreMachine


class SqliteMachine(StoreMachine):
    def make_store(self, clock):
        self.directory = tempfile.TemporaryDirectory()
        path = Path(self.directory.name) / "runs.db"
        return SqliteStore(path, synchronous="normal", clock=clock, lease_clock=clock)

    def teardown(self):
        super().teardown()
        self.store.close()
        self.directory.cleanup()


TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = settings(SETTINGS, max_examples=6)
pytestmark = MAY_TAKE_LONG
