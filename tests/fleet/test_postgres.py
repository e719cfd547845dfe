"""The store in Postgres keeps the contract of stores, the races over two stores of one database included."""

import subprocess
import sys

import pytest

from stoppable.stores.postgres import from_url
from stoppable.testing import DurableStoreContract

DYING = """
import os, sys
from stoppable.records import RunRecord
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url
store = from_url(sys.argv[1])
store.open()
store.open_worker(WorkerInfo(id=sys.argv[2], pid=os.getpid()), 3600).result(10)
for run_id in sys.argv[3:]:
    store.register(RunRecord(id=run_id, name="agent", worker=sys.argv[2]), "r").result(10)
print("up", flush=True)
sys.stdin.read()
"""


class TestPostgresStore(DurableStoreContract):
    events_kept = 300  # more than any other test adds

    @pytest.fixture(autouse=True)
    def _database(self, wiped_url):
        self.url = wiped_url

    def make_store(self, clock):
        store = from_url(self.url)
        store._clock, store._events_kept = clock, self.events_kept
        return store

    another_store = make_store

    def die(self, worker, *run_ids):
        command = [sys.executable, "-W", "ignore", "-c", DYING, self.url, worker, *run_ids]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "up\n"
            process.kill()
