"""A real Postgres for the tests of this folder, and an empty schema in it for each test."""

import os
import uuid
from types import SimpleNamespace
from urllib.parse import urlsplit

import psycopg
import pytest

from stoppable.stores.postgres import from_url
from stoppable.stores.sql import worker_locks

from .postgres_server import Installation, PostgresServer


@pytest.fixture(scope="session")
def installation():
    """What every server of this process is started from."""
    installation = Installation()
    yield installation
    installation.close()


@pytest.fixture(scope="session")
def server(request):
    """Start a server, which ends with the tests."""
    if (url := os.environ.get("STOPPABLE_TEST_POSTGRES")) is not None:  # that of the tests which started these
        yield SimpleNamespace(url=url, port=urlsplit(url).port)
        return
    server = PostgresServer(request.getfixturevalue("installation"))
    yield server
    server.close()


@pytest.fixture
def own_server(installation):
    """A server that a test may kill."""
    server = PostgresServer(installation)
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


@pytest.fixture(scope="session")
def _wiped(database):
    """A schema with tables, and a connection that empties them: tables take longer to make than most tests."""
    schema = f"test_{uuid.uuid4().hex}"
    store = from_url(f"{database}?schema={schema}")
    store.open()
    store.close()
    with psycopg.connect(database, autocommit=True) as connection:
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'version'", (schema,)
        ).fetchall()
        connection.execute("SET client_min_messages = warning")
        yield schema, lambda: connection.execute("".join(f"DELETE FROM {schema}.{table};" for (table,) in tables))
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def wiped_url(database, tmp_path, _wiped):
    """The URL of a store that is empty, but whose numbers go on where another test has ended."""
    schema, wipe = _wiped
    yield f"{database}?schema={schema}&locks={tmp_path / 'locks'}"
    wipe()


@pytest.fixture(autouse=True)
def _locks():
    """Let go of the locks of workers that did not say goodbye: this process outlives them."""
    yield
    while worker_locks._descriptors:
        os.close(worker_locks._descriptors.popitem()[1])
