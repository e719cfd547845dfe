"""Replicas that share a database, and what is done to them, to it and to the way between them."""

import os
import uuid

import pytest
from tests.faults import campaign
from tests.faults.replica_cases import ReplicaCases

from .postgres_server import PostgresServer

SEED = int(os.environ.get("STOPPABLE_FAULTS_SEED", "20"))


class TestReplicasOfADatabase(ReplicaCases):
    @pytest.fixture(scope="class")
    @classmethod
    def store(cls, database, tmp_path_factory):
        return f"{database}?schema=replicas_{uuid.uuid4().hex}&locks={tmp_path_factory.mktemp('locks')}"
