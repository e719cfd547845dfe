"""Notifications are speed: those that are lost are made good when the connection is back."""

import threading
import time

import psycopg
import pytest

from stoppable import Mode, Reason
from stoppable.records import Draft, EventType, RunRecord, StopIntent, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url

SECONDS = 30


@pytest.fixture
def stores(url):
    """Two stores of one database."""
    both = [from_url(url), from_url(url)]
    for store in both:
        store.open()
    yield both
    for store in both:
        store.close()


def begin(store, run_id="a", worker="w"):
    store.open_worker(WorkerInfo(id=worker), 3600).result(SECONDS)
    store.register(RunRecord(id=run_id, name="agent", worker=worker), "r").result(SECONDS)


class Heard:
    """Takes the intents of a worker whenever it is woken, as a supervisor does."""

    def __init__(self, store, worker="w"):
        self._store, self._worker = store, worker
        self._changed = threading.Condition()
        self._seen = []
        self._has_looked = False
        self.subscription = store.hints(worker, self._look)

    def _look(self, intents):
        if intents is None:
            self._store.intents(self._worker).then(lambda reply: self._saw(reply.result()))
        else:
            self._saw(intents)

    def _saw(self, intents):
        with self._changed:
            self._has_looked = True
            self._seen += [(intent.run_id, intent.stop.mode) for intent in intents]
            self._changed.notify_all()

    def wait_for_first_look(self):
        """Wait for the look that follows the beginning: it would see a stop that no notification tells."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._has_looked, SECONDS)

    def wait_for(self, run_id, mode=Mode.GRACEFUL):
        with self._changed:
            assert self._changed.wait_for(lambda: (run_id, mode) in self._seen, SECONDS), self._seen


def followed(store):
    """Wait until the database knows what a store follows."""
    deadline = time.monotonic() + SECONDS
    while not store._engine.listener._followed:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_stop_of_another_process_arrives_with_its_notification(stores):
    here, there = stores
    begin(here)
    heard = Heard(here)
    heard.wait_for_first_look()
    there.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.KILL, reason=Reason(message="now")))).result(
        SECONDS
    )
    heard.wait_for("a", Mode.KILL)


def test_a_stop_that_nobody_heard_is_seen_after_the_reconnect(url, stores):
    """The connection is cut and may not come back before the stop was answered."""
    here, there = stores
    begin(here)
    heard = Heard(here)
    listener = here._engine.listener
    followed(here)
    connect, may_connect = listener._connect, threading.Event()
    listener._connect = lambda: may_connect.wait(SECONDS) and connect()
    cut(url, listener.backend)
    there.request_stop(StopRequest(target="a")).result(SECONDS)
    may_connect.set()
    heard.wait_for("a")


def test_an_event_of_another_process_that_nobody_heard_is_seen_after_the_reconnect(url, stores):
    here, there = stores
    begin(here)
    woken = threading.Event()
    here.watch("a", woken.set)
    listener = here._engine.listener
    followed(here)
    connect, may_connect = listener._connect, threading.Event()
    listener._connect = lambda: may_connect.wait(SECONDS) and connect()
    cut(url, listener.backend)
    there.append("a", 1, [Draft(type=EventType.LOG)]).result(SECONDS)
    woken.clear()
    may_connect.set()
    assert woken.wait(SECONDS)
    assert [event.type for event in here.read("a").result(SECONDS)] == [EventType.LOG]


def test_a_stop_right_after_every_connection_was_reset_is_heard(url, stores):
    here, there = stores
    heard = Heard(here)
    for number in range(25):
        begin(here, f"run {number}")
        cut(url, *backends(url, here))
        there.request_stop(StopRequest(target=f"run {number}")).result(SECONDS)
        heard.wait_for(f"run {number}")


def cut(url, *pids):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        for pid in pids:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def backends(url, store):
    """Return the server's processes of a store, as far as it has connections now."""
    engine = store._engine
    made = [link._connection for link in engine._links]
    return [engine.listener.backend, *(each.info.backend_pid for each in made if each is not None and not each.closed)]
