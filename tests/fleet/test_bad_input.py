"""What is wrong with a database is said at the start, in words that tell what to do."""

import re
import uuid

import psycopg
import pytest

from stoppable import Status
from stoppable.errors import InvalidArgument, RunNotFound, StoreError
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url, pg_connection, pg_stops
from stoppable.stores.urls import store_of


def refused(url):
    """Return what opening a store says."""
    store = from_url(url)
    with pytest.raises(StoreError) as caught:
        store.open()
    assert "secret" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def role(database):
    """Return a role that may do nothing but connect, and the URL of it."""
    name = f"role_{uuid.uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
        yield name, database.replace("//postgres:", f"//{name}:")
        connection.execute(f"DROP OWNED BY {name}")
        connection.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_both_schemes_mean_postgres(url, scheme):
    store = store_of(url.replace("postgresql", scheme, 1))
    store.open()
    assert store.counts().result(10) == {}
    store.close()


@pytest.mark.parametrize("given", ["postgresql://", "postgresql://host", "postgresql://ann:secret@host/"])
def test_a_url_without_a_database_is_refused(given):
    with pytest.raises(InvalidArgument, match="names no database") as caught:
        from_url(given)
    assert "secret" not in str(caught.value)


def test_a_schema_that_is_not_a_plain_name_is_refused():
    with pytest.raises(InvalidArgument, match="plain name"):
        from_url('postgresql://host/db?schema=a"b')


def test_a_parameter_that_libpq_does_not_know_is_named(database):
    assert "colour" in refused(f"{database}?colour=red")


def test_nobody_listens_there(database):
    said = refused(re.sub(r":\d+/", ":1/", database))
    assert "see whether it is up" in said


def test_a_wrong_password(database):
    assert "the password is wrong" in refused(database.replace(":secret@", ":wrong@"))


def test_a_database_that_does_not_exist(database):
    assert "create it first" in refused(database.removesuffix("postgres") + "nowhere")


def test_a_role_that_may_not_make_the_tables(role):
    assert "the role may not do this" in refused(f"{role[1]}?schema=nobody_made_this")


def test_a_role_that_may_only_read(role, url):
    store = from_url(url)
    store.open()
    store.close()
    name, as_role = role
    schema = re.search(r"schema=(\w+)", url)[1]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
    assert "the role may not do this" in refused(f"{as_role}?schema={schema}")


def test_the_role_of_least_privilege_is_enough(role, url, tmp_path):
    """What docs/how-to/postgres.md grants."""
    store = from_url(url)
    store.open()
    store.close()
    name, as_role = role
    schema = re.search(r"schema=(\w+)", url)[1]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {name}")
    store = from_url(f"{as_role}?schema={schema}&locks={tmp_path / 'locks'}")
    store.open()
    try:
        _lives(store)
    finally:
        store.close()


def test_a_schema_of_a_newer_version(url):
    store = from_url(url)
    store.open()
    store.close()
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        schema = re.search(r"schema=(\w+)", url)[1]
        connection.execute(f"UPDATE {schema}.version SET version = 99")
    assert "has schema 99" in refused(url)
    assert "upgrade stoppable" in refused(url)


def test_a_database_that_is_read_only(url):
    store = from_url(url)
    store.open()
    store.close()
    assert "read-only" in refused(f"{url}&options=-cdefault_transaction_read_only%3Don")


def test_a_directory_for_locks_that_cannot_be_made(url, tmp_path):
    (tmp_path / "file").touch()
    assert "?locks=" in refused(re.sub(r"locks=.*", f"locks={tmp_path / 'file' / 'below'}", url))


def _lives(store):
    store.open_worker(WorkerInfo(id="w"), 30).result(10)
    store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
    store.request_stop(StopRequest(target="a")).result(10)
    store.finish("a", 1, OutcomeRecord(status=Status.STOPPED), None).result(10)
    store.purge(store.now() + 1).result(10)
    store.close_worker("w").result(10)


def test_a_pooler_that_gives_each_transaction_another_connection_is_named(url):
    """What pgbouncer does in transaction mode: what the session was told, or has prepared, is gone."""
    store = from_url(url)
    store.open()
    try:
        with pytest.raises(RunNotFound):
            store.request_stop(StopRequest(target="a")).result(30)
        with pytest.raises(StoreError, match="use session mode"):
            pg_connection.connect(store._engine._address, prepared=(*pg_stops.PREPARED, *pg_stops.PREPARED))
        session = store._engine._links[0].get()
        session.execute("DEALLOCATE ALL")
        with pytest.raises(StoreError, match="use session mode"):
            store.request_stop(StopRequest(target="a")).result(30)
        session.execute("SET search_path = public")
        with pytest.raises(StoreError, match="use session mode"):
            store.append("a", 1, [Draft(type=EventType.LOG)]).result(30)
    finally:
        store.close()
