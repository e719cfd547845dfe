"""The store in a SQLite file keeps the contract of stores."""

import pytest

from stoppable.stores.sqlite import SqliteStore
from stoppable.testing import DurableStoreContract

from .sqlite_tools import Script


class TestSqliteStore(DurableStoreContract):
    events_kept = 300  # more than any other test adds

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path = tmp_path / "runs.db"

    def make_store(self, clock):
        return SqliteStore(self.path, clock=clock, lease_clock=clock, events_kept=self.events_kept)

    another_store = make_store

    def die(self, worker, *run_ids):
        code = f"""
store.open_worker(WorkerInfo(id={worker!r}, pid=os.getpid()), 3600).result(10)
for run_id in {run_ids!r}:
    store.register(RunRecord(id=run_id, name="agent", worker={worker!r}), "r").result(10)
say("up"); told()
"""
        with Script(code, self.path) as process:
            assert process.hears() == "up"
            process.kill()
