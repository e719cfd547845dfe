"""A peer that is there and does not answer is given up, and holds up no other replica."""

import threading

import psycopg
import pytest
from tests.proxy import Proxy

from stoppable.errors import StoreError
from stoppable.records import StopRequest
from stoppable.stores.postgres import from_url, pg_connection

from .test_wakeups import SECONDS, Heard, begin, followed


@pytest.fixture
def proxy(url):
    """The way from a store to its database."""
    with Proxy(int(url.partition("127.0.0.1:")[2].partition("/")[0])) as proxy:
        yield proxy


@pytest.fixture
def store(url, proxy, monkeypatch):
    """A store that soon loses its patience, behind the proxy."""
    monkeypatch.setattr(pg_connection, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(pg_connection, "BEAT_SECONDS", 0.5)
    port = url.partition("127.0.0.1:")[2].partition("/")[0]
    store = from_url(url.replace(f":{port}/", f":{proxy.port}/"))
    store.open()
    yield store
    proxy.heal()
    store.close()


def test_connections_that_went_silent_are_given_up_and_made_again(store, proxy):
    begin(store)
    heard = Heard(store)
    followed(store)
    backend = store._engine.listener.backend
    proxy.black_hole()
    refused = [store.get("a"), store.heartbeat("w", 3600), store.request_stop(StopRequest(target="a"))]
    for reply in refused:
        with pytest.raises(StoreError, match="does not answer"):
            reply.result(SECONDS)
    proxy.heal()  # for new connections: those of before stay silent

    def answered(call):
        for _ in range(100):  # while the database counts as away, calls fail at once
            try:
                return call().result(SECONDS)
            except StoreError:
                between.wait(0.1)
        raise AssertionError("it is never asked again")

    between = threading.Event()
    assert answered(lambda: store.get("a")).id == "a"
    answered(lambda: store.heartbeat("w", 3600))
    answered(lambda: store.request_stop(StopRequest(target="a")))
    heard.wait_for("a")
    while store._engine.listener.backend == backend:
        between.wait(0.05)


def test_a_replica_that_goes_silent_in_a_transaction_holds_nobody_up(url, store, monkeypatch):
    """The server ends the transaction, though a client that sends its statements together never seems idle to it."""
    begin(store)
    other = from_url(url)
    other.open()
    monkeypatch.setattr(pg_connection, "TRANSACTION_SECONDS", 1)
    silent = pg_connection.connect(store._engine._address)
    try:
        if silent.info.server_version < 170_000:
            pytest.skip("Postgres bounds the time of a transaction from 17 on")
        with pytest.raises(psycopg.OperationalError), silent.pipeline():
            silent.execute("BEGIN")
            silent.execute("SELECT 1 FROM runs WHERE id = 'a' FOR UPDATE").fetchone()
            other.request_stop(StopRequest(target="a")).result(SECONDS)  # waits for the lock
            silent.execute("SELECT 1").fetchone()
    finally:
        silent.close()
        other.close()
