"""Several processes on one file: they see each other, wait for each other, and lose nothing when one is killed."""

import os
import queue
import signal
import threading

import pytest
from tests.waiting import wait_until

from stoppable._core.values import Mode, Reason, Status
from stoppable.records import StopIntent, StopRequest
from stoppable.stores.base import Intent
from stoppable.stores.sql import rows
from stoppable.stores.sqlite import lite_engine
from stoppable.stores.sqlite.wakeups import Wakeups

from .sqlite_tools import Script, listens, progress, reaped, started

WORKER = """
store.open_worker(WorkerInfo(id="w", pid=os.getpid()), 30).result(10)
store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
store.append("a", 1, [Draft(type=EventType.STATUS, data={"status": "running"})]).result(10)
"""


def test_what_one_process_writes_the_other_reads(store, path):
    with Script(WORKER + "say('up'); told(); say(store.heartbeat('w', 30).result(10)[0].stop.mode)", path) as other:
        assert other.hears() == "up"
        assert store.get("a").result(10).status is Status.RUNNING
        store.request_stop(StopRequest(target="a", intent=StopIntent(mode=Mode.IMMEDIATE))).result(10)
        other.says()
        assert other.hears() == "immediate"


def test_of_two_processes_that_end_a_run_one_wins_300_times_of_300(open_store, path):
    """I1, G2."""
    store = open_store(synchronous="normal")
    for round_ in range(300):
        started(store, f"run{round_}")
    code = """
say("up"); told()
for round in range(300):
    kept = store.finish(f"run{round}", 1, OutcomeRecord(status=Status.COMPLETED, result=os.getpid()), None)
    say(kept.result(10).outcome.result)
"""
    with Script(code, path) as one, Script(code, path) as two:
        for each in (one, two):
            assert each.hears() == "up"
        for each in (one, two):
            each.says()
        winners = [(one.hears(), two.hears()) for _ in range(300)]
    assert all(a == b != "" for a, b in winners)
    for round_ in range(300):
        record = store.get(f"run{round_}").result(10)
        assert record.epoch == 2
        assert str(record.outcome.result) == winners[round_][0]
        types = [event.type.value for event in store.read(f"run{round_}").result(10)]
        assert (types.count("done"), types.count("late")) == (1, 1)


def test_a_process_that_is_killed_while_it_writes_loses_nothing_that_was_answered(store, path):
    """G14."""
    code = """
store.open_worker(WorkerInfo(id="w"), 30).result(10)
together = threading.Barrier(8)
def work(number):
    run_id = f"run{number}"
    store.register(RunRecord(id=run_id, name="agent", worker="w"), "r").result(10)
    together.wait()
    while True:
        os.write(1, f"{run_id} {store.append(run_id, 1, [Draft(type=EventType.LOG)]).result(10)}\\n".encode())
for number in range(8):
    threading.Thread(target=work, args=(number,), daemon=True).start()
threading.Event().wait(30)
"""
    answered: dict[str, int] = {}
    with Script(code, path) as other:
        lines = [other.hears() for _ in range(300)]
        other.kill()
        lines += other.process.stdout.read().splitlines()
    for line in lines:
        run_id, seq = line.split()
        answered[run_id] = max(answered.get(run_id, 0), int(seq))
    assert len(answered) > 1
    for run_id, seq in answered.items():
        numbers = [event.seq for event in store.read(run_id, limit=100_000).result(10)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= seq


def test_a_call_waits_for_another_process_that_writes(store, path):
    started(store)
    code = """
import apsw
file = apsw.Connection(sys.argv[1])
file.execute("BEGIN IMMEDIATE"); print("held", flush=True)
sys.stdin.readline(); file.execute("COMMIT"); print("free", flush=True)
"""
    with Script(code, path, prelude="import sys\n") as other:
        assert other.hears() == "held"
        replies = [store.append("a", 1, progress(step=step)) for step in range(3)]
        other.says()
        assert other.hears() == "free"
        assert [reply.result(10) for reply in replies] == [2, 3, 4]


def test_many_processes_make_the_file_at_once(path):
    code = "store.open_worker(WorkerInfo(id=str(os.getpid())), 30).result(10); say('ok')"
    scripts = [Script(code, path) for _ in range(4)]
    try:
        assert [script.hears() for script in scripts] == ["ok"] * 4
    finally:
        for script in scripts:
            script.__exit__()


# Waking


def test_a_stop_in_another_process_wakes_the_worker(store, path, monkeypatch):
    monkeypatch.setattr(lite_engine, "LOOK_SECONDS", 600.0)
    _woken_by_another_process(store, path)


def test_a_worker_is_woken_where_the_path_is_too_long_for_a_socket(open_store, tmp_path, monkeypatch):
    monkeypatch.setattr(lite_engine, "LOOK_SECONDS", 600.0)
    directory = tmp_path / ("long" * 30) / ("path" * 30)
    directory.mkdir(parents=True)
    _woken_by_another_process(open_store(path=directory / "runs.db"), directory / "runs.db")


def test_a_stop_whose_wakeup_is_lost_is_seen_by_looking(store, path):
    _woken_by_another_process(store, path, deaf=True)


def test_a_stop_that_nobody_was_told_of_comes_with_the_next_heartbeat(store, path):
    """G14."""
    started(store)
    with Script("store.request_stop(StopRequest(target='a')).result(10)", path) as other:
        assert other.ends() == 0
    assert [each.run_id for each in store.heartbeat("w", 30).result(10)] == ["a"]


def _woken_by_another_process(store, path, *, deaf=False):
    started(store)
    woken, subscription = listens(store, "w")
    if deaf:
        (path.with_name(path.name + "-workers") / "w.sock").unlink()
    with Script("told(); store.request_stop(StopRequest(target='a')).result(10); say('stopped')", path) as other:
        store.get("a").result(10)
        woken.clear()
        other.says()
        assert other.hears() == "stopped"
        assert woken.wait(60)
    assert [each.run_id for each in store.heartbeat("w", 30).result(10)] == ["a"]
    subscription.close()


STOP = ("a", Mode.KILL.rank, None, rows.encode(Reason(message="now")))
INTENTS = [Intent(run_id="a", stop=StopIntent(mode=Mode.KILL, reason=Reason(message="now")))]


def test_a_wakeup_brings_the_stops_unless_they_are_too_many_for_a_datagram(tmp_path):
    woken = queue.SimpleQueue()
    wakeups = Wakeups(tmp_path, lambda *news: woken.put(news))
    long = ("a", Mode.KILL.rank, None, rows.encode(Reason(message="now" * 1000)))
    try:
        cases = (([STOP], INTENTS), ([STOP] * 2, INTENTS * 2), ([STOP] * 51, None), ([long], None))
        for worker, (stops, intents) in zip("abcd", cases, strict=True):  # the second for one worker may find it busy
            wakeups.listen(worker)
            wakeups.wake({worker: stops})
            assert woken.get(timeout=60) == (worker, intents)
    finally:
        wakeups.close()


def test_a_worker_that_comes_after_the_end_is_not_listened_for(tmp_path):
    """A store that waits for the file of a process that holds it is closed; then the file is free, and calls go on."""
    wakeups = Wakeups(tmp_path, pytest.fail)
    wakeups.listen("a")
    wakeups.close()
    wakeups.listen("b")
    for worker in "ab":
        wakeups.unlisten(worker)
    assert list(tmp_path.iterdir()) == []


def test_a_wakeup_that_comes_while_one_is_answered_is_answered_too(tmp_path):
    """A look that is under way may be too early for the second stop; many rings that came meanwhile need one more."""
    looks, looking, go = [], threading.Event(), threading.Event()

    def look(worker, intents):
        looks.append((worker, intents))
        looking.set()
        assert go.wait(60)

    wakeups, others = Wakeups(tmp_path, look), Wakeups(tmp_path, look)
    try:
        wakeups.listen("w")
        others.wake({"w": [STOP], "nobody": [STOP]})
        assert looking.wait(60)
        for _ in range(5):
            others.wake({"w": [STOP]})
        go.set()
        wait_until(lambda: len(looks) == 2)
        others.wake({"w": [STOP]})
        wait_until(lambda: len(looks) == 3)
        assert looks == [("w", INTENTS), ("w", None), ("w", INTENTS)]
    finally:
        go.set()
        wakeups.close()
        others.close()


def test_whoever_watches_a_run_is_woken_by_another_process(store, path):
    started(store)
    woken = threading.Event()
    subscription = store.watch("a", woken.set)
    with Script("told(); store.append('a', 1, [Draft(type=EventType.LOG)]).result(10); say('ok')", path) as other:
        woken.clear()
        other.says()
        assert other.hears() == "ok"
        assert woken.wait(60)
    subscription.close()


# Proof of death


def test_a_killed_worker_is_proven_dead_before_its_lease_ends(store, path):
    with Script(WORKER + "say('up'); told()", path) as other:
        assert other.hears() == "up"
        assert reaped(store, expired=True) == {}
        other.kill()
        assert reaped(store) == {"a": "failed"}
    record = store.get("a").result(10)
    assert record.outcome.error.type == "WorkerLost"
    assert list(path.with_name("runs.db-workers").iterdir()) == []


def test_a_killed_worker_that_had_a_stop_leaves_its_runs_stopped(store, path):
    with Script(WORKER + "say('up'); told()", path) as other:
        assert other.hears() == "up"
        store.request_stop(StopRequest(target="a")).result(10)
        other.kill()
        assert reaped(store) == {"a": "stopped"}


def test_a_worker_is_not_dead_while_a_child_that_was_given_its_lock_lives(store, path):
    code = WORKER + "say(subprocess.Popen(['sleep', '60'], pass_fds=store.inherited).pid); told()"
    with Script(code, path) as other:
        child = int(other.hears())
        try:
            other.kill()
            assert reaped(store) == {}
        finally:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: reaped(store) == {"a": "failed"})


def test_a_child_that_was_not_given_the_lock_does_not_keep_its_worker_alive(store, path):
    code = WORKER + "child = subprocess.Popen(['sleep', '60']); say(child.pid); told()"
    with Script(code, path) as other:
        child = int(other.hears())
        other.kill()
        try:
            assert reaped(store) == {"a": "failed"}
        finally:
            os.kill(child, signal.SIGKILL)


def test_to_test_a_lock_does_not_release_it(open_store, path):
    store, other = open_store(), open_store()
    started(store)
    started(other, "b", "of the other store")
    for _ in range(3):
        assert reaped(store) == reaped(other) == {}
    with Script("say([r.id for r in store.reap(expired=False).result(10)])", path) as third:
        assert third.hears() == "[]"
    assert store.inherited != other.inherited
    assert [len(each.inherited) for each in (store, other)] == [1, 1]


def test_a_store_that_is_closed_proves_nothing_about_its_worker(open_store):
    first = open_store()
    started(first)
    first.close()
    second = open_store()
    assert reaped(second) == {}
    second.close_worker("w").result(10)
    assert reaped(second) == {"a": "failed"}


def test_a_finished_run_is_not_touched_by_the_death_of_its_worker(store, path):
    code = WORKER + "store.finish('a', 1, OutcomeRecord(status=Status.COMPLETED), None).result(10); say('up'); told()"
    with Script(code, path) as other:
        assert other.hears() == "up"
        other.kill()
    assert reaped(store) == {}
    assert store.get("a").result(10).status is Status.COMPLETED
