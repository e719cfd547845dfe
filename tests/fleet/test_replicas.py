"""Replicas that share a database, and what is done to them, to it and to the way between them."""

import os
import uuid

import pytest
from tests.faults import campaign
from tests.faults.replica_cases import ReplicaCases

SEED = int(os.environ.get("STOPPABLE_FAULTS_SEED", "20"))


class TestReplicasOfADatabase(ReplicaCases):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, database, tmp_path_factory):
        return f"{database}?schema=replicas_{uuid.uuid4().hex}&locks={tmp_path_factory.mktemp('locks')}"


@pytest.mark.timeout(600)  # every part has a deadline of its own
def test_no_stop_that_was_answered_is_lost_while_replicas_and_the_database_fail(own_server, tmp_path):
    """G14; ``make faults`` does it with every fault and thousands of stops."""
    faults = ["SIGKILL of the worker", "connections ended by the database", "kill -9 of the database", "resets"]
    with campaign.on_postgres(own_server, tmp_path, SEED) as fleet:
        campaign.run(fleet, faults, 10, tmp_path, SEED, least=1)
