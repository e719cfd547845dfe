"""A real Postgres for the tests of this folder, and an empty schema in it for each test."""

import os
import uuid
from types import SimpleNamespace

import psycopg
import pytest

from stoppable.stores.sql import locks

from .postgres_server import PostgresServer


@pytest.fixture(scope="session")
def server():
    """Start a server, which ends with the tests."""
    if (url := os.environ.get("STOPPABLE_TEST_POSTGRES")) is not None:  # that of the tests which started these
        yield SimpleNamespace(url=url)
        return
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def database(server):
    """The URL of a database."""
    return server.url


@pytest.fixture
def url(database, tmp_path):
    """The URL of a store of its own for each test."""
    schema = f"test_{uuid.uuid4().hex}"
    yield f"{database}?schema={schema}&locks={tmp_path / 'locks'}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture(autouse=True)
def _locks():
    """Let go of the locks of workers that did not say goodbye: this process outlives them."""
    yield
    while locks._held:
        os.close(locks._held.popitem()[1])
