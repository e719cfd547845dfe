"""Numbers that readers read on from are seen in their order, whoever commits first."""

import threading

import psycopg
from tests.waiting import wait_until

from stoppable.records import StopIntent
from stoppable.stores.postgres import from_url
from stoppable.stores.sql import stop_requests

SECONDS = 30


def someone_waits(url):
    """Return whether a transaction waits for an advisory lock."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall()
    return bool(found)


def test_a_reader_that_reads_on_sees_an_entry_that_is_committed_later(url):
    """The first has its number and is not yet committed when the second wants one."""
    stores = here, there, reader = [from_url(url) for _ in range(3)]
    for store in stores:
        store.open()
    has_number, may_commit = threading.Event(), threading.Event()

    def slow(tx):
        stop_requests.add_audit_entry(tx, "stop", StopIntent(), "first", {})
        tx.all("SELECT 1")  # all of it was sent
        has_number.set()
        may_commit.wait(SECONDS)

    try:
        first = here._write(slow)
        assert has_number.wait(SECONDS)
        second = there._write(lambda tx: stop_requests.add_audit_entry(tx, "stop", StopIntent(), "second", {}))
        is_done = threading.Event()
        second.then(lambda _: is_done.set())
        wait_until(lambda: is_done.is_set() or someone_waits(url), SECONDS)
        page = list(reader.audit().result(SECONDS))
        may_commit.set()
        first.result(SECONDS)
        second.result(SECONDS)
        page += reader.audit(after=page[-1].id if page else 0).result(SECONDS)
        assert [entry.target["run"] for entry in page] == ["first", "second"]
    finally:
        may_commit.set()
        for store in stores:
            store.close()
