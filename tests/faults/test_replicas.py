"""Replicas that share a file; tests/fleet has the same on Postgres."""

import contextlib

import pytest

from stoppable.stores.urls import store_of

from . import campaign
from .replica_cases import ReplicaCases

SEED = 20


class TestReplicasOfAFile(ReplicaCases):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, tmp_path_factory):
        return f"sqlite:///{tmp_path_factory.mktemp('replicas') / 'runs.db'}"

    @contextlib.contextmanager
    def frozen(self, replica, url):
        store = store_of(url)
        store.open()
        try:
            replica.freeze(store)
            yield
        finally:
            replica.thaw()
            store.close()


def test_no_stop_that_was_answered_is_lost_while_replicas_are_killed_and_restarted(tmp_path):
    """G14; ``make faults`` does it with every fault and thousands of stops."""
    with campaign.on_a_file(tmp_path, SEED) as fleet:
        faults = ["SIGKILL of the worker", "SIGTERM during a stop"]
        fates = campaign.run(fleet, faults, 10, tmp_path, SEED, least=1)
    assert set().union(*fates.values()) <= {"stopped", "completed first"}
