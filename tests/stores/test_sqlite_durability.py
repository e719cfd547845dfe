"""When calls are durable, and who sees them before: a stop is heard while the disk is at work, and an end is not."""

import os
import threading

import pytest

from stoppable._core.values import Mode
from stoppable.errors import RunNotFound, StoreError
from stoppable.records import StopIntent, StopRequest
from stoppable.stores.sqlite import lite_engine

from .sqlite_tools import Gate, done, listens, progress, started

BY_SQLITE, BY_US = 2, 1  # PRAGMA synchronous: full, normal


class Disk:
    """Stands before the sync of a store: counts, waits for a word, or fails."""

    def __init__(self, store):
        self.writer = store._engine._writer
        self.connection = store._engine._writes
        self._sync, self.writer._sync = self.writer._sync, self.sync
        self.error = None
        self.asked = 0
        self.is_at_work = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def sync(self):
        self.asked += 1
        self.is_at_work.set()
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error
        self._sync()

    @property
    def level(self):
        return self.connection.pragma("synchronous")


def test_a_stop_is_heard_while_the_disk_is_at_work_and_answered_after(open_store, monkeypatch):
    """Who waits for the answer waits for the disk (G14); the worker, which a power cut would end too, does not."""
    monkeypatch.setattr(lite_engine, "LOOK_SECONDS", 600.0)
    worker, other = open_store(), open_store()
    started(worker)
    heard, subscription = listens(worker, "w")
    worker.get("a").result(10)
    heard.clear()
    disk = Disk(other)
    disk.may_end.clear()
    reply = other.request_stop(StopRequest(target="a"))
    assert heard.wait(60)
    assert [each.run_id for each in worker.intents("w").result(10)] == ["a"]
    assert disk.is_at_work.wait(60)
    with pytest.raises(StoreError, match="did not answer"):
        reply.result(0.01)
    disk.may_end.set()
    assert reply.result(10).answers[0].answer == "accepted"
    subscription.close()


def test_the_sync_of_a_stop_is_that_of_the_log(store, path):
    started(store)
    assert os.path.samestat(os.fstat(store._engine._writer._sync.args[0]), (path.parent / "runs.db-wal").stat())


def test_an_end_is_durable_before_anybody_sees_it(store):
    """G2: what somebody has seen of it must not be undone by a power cut."""
    started(store)
    started(store, "b")
    disk = Disk(store)
    gate = Gate(store)
    together = [store.request_stop(StopRequest(target="a")), store.finish("b", 1, done(), None), store.get("b")]
    gate.open()
    assert [reply.result(10) for reply in together][2].over
    assert (disk.asked, disk.level) == (0, BY_SQLITE)


def test_every_call_after_a_stop_is_durable_by_itself_again(store):
    started(store)
    disk = Disk(store)
    store.request_stop(StopRequest(target="a")).result(10)
    assert (disk.asked, disk.level) == (1, BY_US)
    store.append("a", 1, progress()).result(10)
    assert (disk.asked, disk.level) == (1, BY_SQLITE)
    store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.KILL))).result(10)
    assert (disk.asked, disk.level) == (2, BY_US)


def test_a_stop_that_the_disk_does_not_confirm_is_passed_on_and_said_to_be_unsure(store):
    started(store)
    disk = Disk(store)
    disk.error = OSError(5, "Input/output error")
    gate = Gate(store)
    unknown, stop = store.request_stop(StopRequest(target="x")), store.request_stop(StopRequest(target="a"))
    gate.open()
    with pytest.raises(RunNotFound):
        unknown.result(10)
    with pytest.raises(StoreError, match="may not survive a power cut"):
        stop.result(10)
    assert [each.run_id for each in store.heartbeat("w", 30).result(10)] == ["a"]
    disk.error = None
    assert store.request_stop(StopRequest(target="a")).result(10).answers[0].answer == "already_stopping"


def test_a_store_that_need_not_survive_a_power_cut_syncs_nothing(open_store):
    store = open_store(synchronous="normal")
    started(store)
    assert store._engine._writer._sync is None
    store.request_stop(StopRequest(target="a")).result(10)
    assert store._engine._writes.pragma("synchronous") == BY_US
