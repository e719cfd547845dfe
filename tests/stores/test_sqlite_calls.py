"""How calls are made: together, in order, each for itself, and never by a forked child."""

import asyncio
import threading

import apsw
import pytest

from stoppable._core.stop import Answer, Receipt
from stoppable._core.values import Mode, Reason, Status
from stoppable.errors import Fenced, InvalidArgument, RunNotFound, StoreError
from stoppable.records import Draft, EventType, RunRecord, Selector, StopIntent, StopRequest
from stoppable.stores.base import StoreFuture, WorkerInfo
from stoppable.stores.sql.sql_engine import BatchThread
from stoppable.stores.sqlite import SqliteStore, lite_engine, lite_transaction

from .sqlite_tools import Gate, Script, done, progress, reaped, started


def test_calls_that_wait_share_a_transaction(store):
    started(store)
    commits = []
    store._engine._writes.set_commit_hook(lambda: bool(commits.append(1)))
    gate = Gate(store)
    replies = [store.append("a", 1, progress(step=step)) for step in range(200)]
    gate.open()
    assert [reply.result(10) for reply in replies] == list(range(2, 202))
    assert len(commits) <= 2


def test_a_call_that_fails_fails_alone(store):
    started(store)

    def breaks(tx):
        tx.run("UPDATE runs SET name = 'broken' WHERE id = 'a'")
        raise ZeroDivisionError

    gate = Gate(store)
    before = store.append("a", 1, progress())
    culprit, unknown, surrogate = store._write(breaks), store.append("b", 1, progress()), store.get("a\ud800")
    after = store.append("a", 1, progress())
    gate.open()
    assert (before.result(10), after.result(10)) == (2, 3)
    with pytest.raises(InvalidArgument, match="ZeroDivisionError"):
        culprit.result(10)
    with pytest.raises(RunNotFound):
        unknown.result(10)
    with pytest.raises(InvalidArgument):
        surrogate.result(10)
    assert store.get("a").result(10).name == "agent"
    assert len(store.read("a").result(10)) == 3


def test_a_log_goes_on_where_it_ends_whatever_else_is_called_between(store):
    """Where a log ends is known from the last append: everything else that adds to it must be seen all the same."""
    started(store)
    started(store, "b")
    gate = Gate(store)
    replies = [
        store.append("a", 1, progress()),  # 2
        store.append("b", 1, progress()),
        store.append("a", 1, progress() * 3),  # 5
        store.request_stop(StopRequest(target="a")),  # 6
        store.append("a", 1, progress()),  # 7
        store.acknowledge("a", 1, Mode.GRACEFUL, Receipt(run_id="a", answer=Answer.ACCEPTED, status=Status.STOPPING)),
        store.append("a", 2, progress()),
        store.append("a", 1, progress()),  # 8
        store.finish("a", 1, done(), None),  # 10
        store.append("a", 1, progress()),
        store.append("a", 2, progress()),
        store.finish("a", 1, done(), None),  # 11
        store.append("b", 1, progress()),
    ]
    gate.open()
    assert [replies[at].result(10) for at in (0, 1, 2, 4, 7, 12)] == [2, 2, 5, 7, 8, 3]
    for at in (6, 9, 10):
        with pytest.raises(Fenced):
            replies[at].result(10)
    assert [event.seq for event in store.read("a").result(10)] == list(range(1, 12))
    assert store.get("a").result(10).last_event == 11


def test_a_log_goes_on_where_another_store_has_left_it(open_store):
    one, two = open_store(), open_store()
    started(one)
    for last in range(2, 20, 2):
        assert one.append("a", 1, progress()).result(10) == last
        assert two.append("a", 1, progress()).result(10) == last + 1
    two.finish("a", 1, done(), None).result(10)
    with pytest.raises(Fenced):
        one.append("a", 1, progress()).result(10)


def test_a_log_goes_on_where_it_was_before_what_was_rolled_back(store):
    started(store)

    def breaks(_):
        raise ZeroDivisionError

    assert store.append("a", 1, progress()).result(10) == 2
    gate = Gate(store)
    store.append("a", 1, [Draft(type=EventType.LOG, at="never")])  # no column takes it
    replies = [store.append("a", 1, progress()), store._write(breaks), store.append("a", 1, progress())]
    gate.open()
    assert (replies[0].result(10), replies[2].result(10)) == (3, 4)
    assert store.append("a", 1, progress()).result(10) == 5
    assert [event.seq for event in store.read("a").result(10)] == [1, 2, 3, 4, 5]


def test_a_log_that_fills_up_among_other_calls_is_truncated_once(open_store):
    store = open_store(events_kept=5)
    started(store)
    started(store, "b")
    gate = Gate(store)
    replies = [store.append(run_id, 1, progress(step=step)) for step in range(10) for run_id in "ab"]
    gate.open()
    assert [reply.result(10) for reply in replies][-2:] == [6, 6]
    for run_id in "ab":
        assert [event.type.value for event in store.read(run_id).result(10)] == [
            "status", *["progress"] * 4, "truncated"
        ]  # fmt: skip


def test_more_logs_than_are_remembered_go_on_where_they_end(store, monkeypatch):
    # The real limit, made small: to reach it takes four thousand runs.
    monkeypatch.setattr(lite_transaction, "_TAILS", 3)
    for run_id in "abcde":
        started(store, run_id)
    for last in range(2, 5):
        replies = [store.append(run_id, 1, progress()) for run_id in "abcde"]
        assert [reply.result(10) for reply in replies] == [last] * 5


def test_data_that_contains_itself_has_no_json_form(store):
    started(store)
    endless = {}
    endless["again"] = [endless]
    with pytest.raises(InvalidArgument, match="no JSON form"):
        store.append("a", 1, progress(**endless)).result(10)
    assert store.append("a", 1, progress()).result(10) == 2


def test_nobody_is_told_of_what_was_rolled_back(store):
    started(store)

    def breaks(tx):
        tx.touched_runs.add("a")
        tx.wake("w")
        raise ZeroDivisionError

    told = []
    subscriptions = [store.watch("a", lambda: told.append("a")), store.hints("w", lambda _: told.append("w"))]
    store.append("a", 1, progress()).result(10)
    Gate(store).open()
    told.clear()
    with pytest.raises(InvalidArgument):
        store._write(breaks).result(10)
    assert told == []
    for subscription in subscriptions:
        subscription.close()


def test_a_read_sees_every_change_that_was_asked_for_before(store):
    started(store)
    gate = Gate(store)
    change, look = store.append("a", 1, progress()), store.read("a")
    gate.open()
    assert change.result(10) == len(look.result(10)) == 2


async def test_event_loops_and_threads_wait_alike(store):
    started(store)
    replies = [store.append("a", 1, progress()) for _ in range(10)]

    async def answer(reply):
        return await reply

    assert await asyncio.gather(*map(answer, replies)) == list(range(2, 12))
    with pytest.raises(RunNotFound):
        await store.get("b")


def test_close_finishes_what_was_asked(open_store):
    store = open_store()
    started(store)
    gate = Gate(store)
    replies = [store.append("a", 1, progress()) for _ in range(20)]
    look = store.read("a")
    gate.release()
    store.close()
    assert [reply.result(0) for reply in replies] == list(range(2, 22))
    assert len(look.result(0)) == 21
    with pytest.raises(StoreError, match="not open"):
        store.append("a", 1, progress()).result(0)
    assert len(open_store().read("a").result(10)) == 21


def test_a_lane_that_is_closed_is_waited_for_as_long_as_it_makes_progress():
    done = []

    def work(items):
        threading.Event().wait(0.3)
        done.extend(items)

    batches = BatchThread("test", work, most=1)
    for item in range(8):
        batches.put(item)
    batches.start()
    assert batches.close(2)
    assert done == list(range(8))


def test_close_leaves_to_itself_what_waits_for_another_process(open_store, path, monkeypatch, caplog):
    monkeypatch.setattr(lite_engine, "PATIENCE_SECONDS", 0.2)
    store = open_store()
    started(store)
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    reply = store.append("a", 1, progress())
    store.close()
    assert "another process holds it" in caplog.text
    holder.close()
    assert reply.result(10) == 2  # and it is kept in the end


def test_threads_are_daemons_with_names_and_end_with_the_store(open_store):
    store = open_store()
    started(store)
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("stoppable-sqlite-")]
    assert {thread.name for thread in ours} == {f"stoppable-sqlite-{each}" for each in ("writer", "reader", "wakeups")}
    assert all(thread.daemon for thread in ours)
    store.close()
    assert not any(thread.is_alive() for thread in ours)


def test_a_store_may_be_opened_and_closed_again_and_again(open_store, path):
    store = open_store()
    started(store)
    for step in range(3):
        store.close()
        store.close()
        store.open()
        store.open()
        assert store.append("a", 1, progress()).result(10) == step + 2


def test_after_a_reboot_every_lease_has_run_out(store, path):
    started(store)
    assert reaped(store, expired=True) == {}
    file = apsw.Connection(str(path))
    file.execute("UPDATE workers SET boot = 'an earlier one'")
    file.close()
    assert reaped(store) == {}
    assert reaped(store, expired=True) == {"a": "lost"}  # its lock is held: it may live


def test_a_clock_that_began_anew_ends_leases_too(open_store):
    times = [1000.0]
    store = open_store(lease_clock=lambda: times[0])
    started(store, ttl=10)
    times[0] = 5.0
    assert reaped(store, expired=True) == {"a": "lost"}


def test_the_wall_clock_ends_no_lease(open_store):
    times = [1000.0]
    store = open_store(clock=lambda: times[0])
    started(store, ttl=10)
    times[0] = 1e9
    assert reaped(store, expired=True) == {}


def test_worker_ids_that_are_no_file_names_work(store, path):
    for number, worker in enumerate(("../../up", "a/b", "x" * 300, "", ".hidden", "ä ö")):
        started(store, f"run{number}", worker)
    assert reaped(store) == {}
    assert {file.parent for file in path.parent.rglob("*.lock")} == {path.with_name("runs.db-workers")}
    for number, worker in enumerate(("../../up", "a/b", "x" * 300, "", ".hidden", "ä ö")):
        store.close_worker(worker).result(10)
        assert reaped(store) == {f"run{number}": "failed"}


def test_a_worker_whose_id_is_taken_is_refused(store, path):
    code = "store.open_worker(WorkerInfo(id='w'), 30).result(10); say('up'); told()"
    with Script(code, path) as other:
        assert other.hears() == "up"
        with pytest.raises(StoreError, match="give each a different id"):
            started(store)


def test_labels_of_any_text_select(store):
    started(store)
    labels = {'a"b': "c'd", "x.y": "[1]", "$": ""}
    store.register(RunRecord(id="b", name="agent", worker="w", labels=labels), "r").result(10)
    for key, value in labels.items():
        result = store.request_stop(StopRequest(target=Selector(labels={key: value}), dry_run=True)).result(10)
        assert [answer.record.id for answer in result.answers] == ["b"]
    assert not store.request_stop(StopRequest(target=Selector(labels={"x": "[1]"}))).result(10).answers


def test_a_stop_is_kept_whatever_its_reason_says(store):
    started(store)
    reason = Reason(message="a\ud800b\0c", actor="\udfff")
    store.request_stop(StopRequest(target="a", intent=StopIntent(reason=reason), idempotency_key="k")).result(10)
    assert store.get("a").result(10).stop.reason == reason
    assert store.read("a", 1).result(10)[0].data["reason"] == reason.message
    assert store.audit().result(10)[0].actor == reason.actor


def test_a_harder_stop_of_a_run_that_was_stopped_before_it_ran_tells_the_first_reason(store):
    store.open_worker(WorkerInfo(id="w"), 30).result(10)
    store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
    store.request_stop(StopRequest(target="a", intent=StopIntent(reason=Reason(message="first")))).result(10)
    store.append("a", 1, [Draft(type=EventType.STATUS, data={"status": "running"})]).result(10)
    store.request_stop(
        StopRequest(target="a", intent=StopIntent(mode=Mode.KILL, reason=Reason(message="second")))
    ).result(10)
    assert store.read("a").result(10)[-1].data == {
        "status": "stopping",
        "mode": "kill",
        "reason": "first",
        "actor": None,
    }


def test_a_bulk_stop_reaches_thousands_and_nobody_else(open_store):
    store = open_store(synchronous="normal")
    started(store)
    replies = [
        store.register(RunRecord(id=f"run{number}", name="agent", worker="w", owner="ann"), "r")
        for number in range(2000)
    ]
    assert all(reply.result(15).created for reply in replies)
    result = store.request_stop(StopRequest(target=Selector(owner="ann"))).result(15)
    assert len(result.answers) == 2000
    assert len(store.heartbeat("w", 30).result(10)) == 2000
    assert store.finish("a", 1, done(), None).result(10).stop is None


def test_the_settings_are_checked(path):
    with pytest.raises(InvalidArgument):
        SqliteStore(path, synchronous="off")


def test_a_heartbeat_does_not_wait_for_what_was_asked_before(tmp_path):
    """A lease must not run out because its process has much to write."""
    order = []
    store = SqliteStore(tmp_path / "runs.db")
    store.open()
    try:
        store.open_worker(WorkerInfo(id="w"), 60).result(15)
        entered, go = threading.Event(), threading.Event()
        store._engine._writer.batches.put((lambda tx: (entered.set(), go.wait(15)), (), StoreFuture()))
        assert entered.wait(15)
        for number in range(2000):  # more than one transaction takes
            record = RunRecord(id=str(number), name="x", worker="w")
            store.register(record, "x").then(lambda _, number=number: order.append(number))
        beaten = store.heartbeat("w", 60)
        beaten.then(lambda _: order.append("beat"))
        go.set()
        beaten.result(15)
        store.counts().result(15)
        assert order[0] == "beat"
        assert order[1:] == list(range(2000))
    finally:
        store.close()


def test_a_lease_that_could_not_be_written_leaves_neither_a_lock_nor_a_socket(store, path):
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TRIGGER full BEFORE INSERT ON workers BEGIN SELECT RAISE(ABORT, 'full'); END")
    gate = Gate(store)
    refused = [store.open_worker(WorkerInfo(id=worker), 30) for worker in ("a", "b")]
    gate.open()
    for reply in refused:
        with pytest.raises(StoreError):
            reply.result(10)
    directory = path.with_name(path.name + "-workers")
    assert (store.inherited, list(directory.iterdir())) == ((), [])
    connection.execute("DROP TRIGGER full")
    connection.close()
    store.open_worker(WorkerInfo(id="a"), 30).result(10)
    assert (len(store.inherited), sorted(file.name for file in directory.iterdir())) == (1, ["a.lock", "a.sock"])


def test_a_lease_that_could_not_be_renewed_keeps_its_lock_and_its_socket(store, path):
    started(store)
    held = store.inherited
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TRIGGER full BEFORE INSERT ON workers BEGIN SELECT RAISE(ABORT, 'full'); END")
    connection.close()
    with pytest.raises(StoreError):
        store.open_worker(WorkerInfo(id="w"), 30).result(10)
    assert store.inherited == held
    assert path.with_name(path.name + "-workers").joinpath("w.sock").exists()
