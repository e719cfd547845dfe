"""Races over two stores whose order is forced: one stands still in its transaction when the other begins.

The contract lets them race; here the worst moment is met every time. Whoever takes its locks waits and then sees what
the first has done. Without a lock it goes past.
"""

import contextlib
import threading

import psycopg
import pytest
from tests.waiting import wait_until

from stoppable._core.values import Status
from stoppable.errors import RunHeld
from stoppable.records import OutcomeRecord, RunRecord, Selector, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url, pg_connection
from stoppable.stores.postgres.pg_transaction import PgSession

SECONDS = 60
_BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


class Pause:
    """Stands still after a statement of one store, until it is told to go on."""

    def __init__(self, url, store, fragment):
        self._url = url.partition("?")[0]
        self._store = store
        self._fragment = fragment
        self._is_there, self._may_go_on = threading.Event(), threading.Event()
        self._backend = 0

    def after(self, session, sql):
        """Stand still if this is the statement."""
        if (
            self._is_there.is_set()
            or self._fragment not in sql
            or getattr(session, "_tell", None) != self._store._engine._tell
        ):
            return
        session.all("SELECT 1")  # all of it was sent and done
        self._backend = session._connection.info.backend_pid
        self._is_there.set()
        self._may_go_on.wait(SECONDS)

    def reached(self):
        assert self._is_there.wait(SECONDS), f"{self._fragment} is not reached"

    def go_on_once_passed_or_blocked(self, second):
        """Let the first go on when the second waits for it, or did not wait."""
        is_done = threading.Event()
        second.then(lambda _: is_done.set())
        try:
            with psycopg.connect(self._url, autocommit=True) as looking:
                wait_until(lambda: is_done.is_set() or looking.execute(_BLOCKED, (self._backend,)).fetchone(), SECONDS)
        finally:
            self._may_go_on.set()


@pytest.fixture
def stores(url, monkeypatch):
    monkeypatch.setattr(pg_connection, "TRANSACTION_SECONDS", 300)  # one of them stands still on a busy machine
    with contextlib.ExitStack() as stack:
        both = []
        for _ in range(2):
            both.append(from_url(url))
            both[-1].open()
            stack.callback(both[-1].close)
        both[0].open_worker(WorkerInfo(id="w"), 3600).result(SECONDS)
        yield both


@pytest.fixture
def in_turn(url, stores, monkeypatch):
    """Make two calls: the second begins when the first has made a statement and not yet committed."""

    def make(fragment, first, second):
        pause = Pause(url, stores[0], fragment)
        ask = PgSession.ask

        def gated(session, sql, values=()):
            asked = ask(session, sql, values)
            pause.after(session, sql)
            return asked

        monkeypatch.setattr(PgSession, "ask", gated)
        here = first(stores[0])
        pause.reached()
        there = second(stores[1])
        pause.go_on_once_passed_or_blocked(there)
        return here.result(SECONDS), _answer(there)

    return make


def _answer(reply):
    try:
        return reply.result(SECONDS)
    except RunHeld as refusal:
        return refusal


def start(run_id="a", worker="w", **fields):
    return lambda store: store.register(RunRecord(id=run_id, name="agent", worker=worker, **fields), "r")


def stop(target="a", **how):
    return lambda store: store.request_stop(StopRequest(target=target, **how))


def is_stopped(store, run_id="a"):
    return store.get(run_id).result(SECONDS).stop is not None


@pytest.mark.parametrize("target", ["a", Selector(key="k")], ids=["id", "key"])
def test_a_start_sees_the_stop_that_is_being_written(stores, in_turn, target):
    in_turn("INSERT INTO tombstones", stop(target, if_unknown="wait"), start(key="k"))
    assert is_stopped(stores[0])


@pytest.mark.parametrize("target", ["a", Selector(key="k")], ids=["id", "key"])
def test_a_stop_sees_the_start_that_is_being_written(stores, in_turn, target):
    in_turn("INSERT INTO runs", start(key="k"), stop(target, if_unknown="wait"))
    assert is_stopped(stores[0])


def test_a_start_sees_the_hold_that_is_being_placed(stores, in_turn):
    _, refusal = in_turn("INSERT INTO holds", stop(Selector(owner="ann"), hold=True), start(owner="ann"))
    assert isinstance(refusal, RunHeld)


def test_a_hold_and_its_stop_see_the_start_that_is_being_written(stores, in_turn):
    in_turn("INSERT INTO runs", start(owner="ann"), stop(Selector(owner="ann"), hold=True))
    assert is_stopped(stores[0])


def test_a_stop_of_a_tree_sees_the_child_that_is_being_born(stores, in_turn):
    start("root")(stores[0]).result(SECONDS)
    start("other", parent_id="root")(stores[0]).result(SECONDS)
    in_turn("INSERT INTO runs", start(parent_id="root"), stop("root"))
    assert is_stopped(stores[0])


def test_a_stop_of_a_run_without_children_sees_its_first_that_is_being_born(stores, in_turn):
    start("root")(stores[0]).result(SECONDS)
    in_turn("INSERT INTO runs", start(parent_id="root"), stop("root"))
    assert is_stopped(stores[0])


def test_a_child_sees_the_stop_of_its_tree_that_is_being_written(stores, in_turn):
    start("root")(stores[0]).result(SECONDS)
    start("other", parent_id="root")(stores[0]).result(SECONDS)
    in_turn("UPDATE runs SET", stop("root"), start(parent_id="root"))
    assert is_stopped(stores[0])


def test_a_reaper_sees_the_start_that_is_being_written(stores, in_turn):
    stores[0].open_worker(WorkerInfo(id="late"), 0.001).result(SECONDS)
    in_turn("INSERT INTO runs", start(worker="late"), lambda store: store.reap())
    stores[1].reap().result(SECONDS)
    assert stores[0].get("a").result(SECONDS).over


def test_of_two_ends_the_second_sees_the_first(stores, in_turn):
    record = start()(stores[0]).result(SECONDS).record

    def end(result):
        outcome = OutcomeRecord(status=Status.COMPLETED, result=result)
        return lambda store: store.finish("a", record.epoch, outcome, None)

    first, second = in_turn("UPDATE runs SET", end("first"), end("second"))
    assert first.outcome.result == second.outcome.result == "first"
    types = [event.type for event in stores[0].read("a").result(SECONDS)]
    assert types == ["status", "done", "late"]
