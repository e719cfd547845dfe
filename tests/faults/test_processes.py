"""G2, G14, G15 and the invariants I1–I9 while processes are killed and frozen."""

import os
import signal
import subprocess
import sys
import time

import apsw
import pytest
from tests.process_states import is_alive
from tests.waiting import wait_until

from stoppable import sync
from stoppable.stores.sqlite import SqliteStore

from .conftest import LONG, TTL, over


def grows(marks):
    size = marks.stat().st_size if marks.exists() else 0
    return lambda: marks.exists() and marks.stat().st_size > size


def stands_still(marks, seconds=0.3):
    size = marks.stat().st_size
    time.sleep(seconds)  # nothing tells of what does not happen
    return marks.stat().st_size == size


def test_a_stop_from_another_process_reaches_the_worker_and_nobody_else(node, supervisor, tmp_path):
    first, second = node(), node()
    target, sibling = first.start("forever", tmp_path / "a"), first.start("forever", tmp_path / "b")
    other = second.start("forever", tmp_path / "c")
    wait_until(grows(tmp_path / "a"))
    assert second.ask(do="stop", run=target)["receipt"] == "accepted"
    record = over(supervisor, target)
    assert (record.status, record.receipt.final, record.outcome.clean) == ("stopped", True, True)
    assert stands_still(tmp_path / "a")
    assert [supervisor.get(run).status for run in (sibling, other)] == ["running", "running"]
    wait_until(grows(tmp_path / "b"))
    wait_until(grows(tmp_path / "c"))
    receipt = supervisor.stop(other, wait=30)
    assert (receipt.status, receipt.answer) == ("stopped", "accepted")
    assert receipt.acknowledged_at is not None


def test_a_worker_that_is_killed_leaves_failed_and_never_running_for_ever(node, supervisor, tmp_path):
    worker = node()
    runs = [worker.start("forever"), worker.start("in_worker", tmp_path / "marks")]
    wait_until(grows(tmp_path / "marks"))
    worker.signal(signal.SIGKILL)
    began = time.monotonic()
    records = [over(supervisor, run) for run in runs]
    assert time.monotonic() - began < LONG, "its death is proven by its lock"
    assert {(record.status, record.outcome.error.type) for record in records} == {("failed", "WorkerLost")}
    assert stands_still(tmp_path / "marks")  # its agent process died with it
    assert {record.status for run in runs for record in supervisor.tree(run)} == {"failed"}


def test_a_worker_that_is_killed_while_a_stop_is_pending_leaves_stopped(node, supervisor):
    worker = node()  # its death is proven by its lock, long before its lease runs out
    run = worker.start("forever")
    worker.freeze(supervisor)
    assert supervisor.stop(run).acknowledged_at is None  # durable, and nobody has answered
    worker.signal(signal.SIGKILL)
    record = over(supervisor, run)
    assert (record.status, record.outcome.clean, record.outcome.rung) == ("stopped", None, "kill")


def test_a_worker_that_is_frozen_past_its_lease_is_lost_and_its_late_writes_change_nothing(node, supervisor, tmp_path):
    worker = node(TTL)
    polite, rude = worker.start("forever", tmp_path / "a"), worker.start("stubborn", tmp_path / "b")
    wait_until(grows(tmp_path / "b"))
    worker.freeze(supervisor)
    records = [over(supervisor, run, TTL * 4 + 10) for run in (polite, rude)]
    assert [record.status for record in records] == ["lost", "lost"]
    worker.signal(signal.SIGCONT)
    wait_until(lambda: supervisor.handle(polite).record().last_event > records[0].last_event)  # the late report
    assert supervisor.get(polite).status == "lost"
    types = [event.type for event in supervisor._core.store.read(polite).result()]
    assert types[types.index("done") :] == ["done", "late"]
    assert stands_still(tmp_path / "a")
    again = worker.start("forever")  # it goes on with a new lease
    assert supervisor.stop(again, wait=30).status == "stopped"


@pytest.mark.parametrize("moment", ["before the datagram", "datagrams are lost"])
def test_a_stop_whose_author_dies_before_anybody_was_told_still_happens(node, supervisor, path, moment):
    worker = node()
    run = worker.start("forever")
    script = f"""
import os, signal
from stoppable.records import StopRequest
from stoppable.stores.sqlite import SqliteStore
from stoppable.stores.sqlite.wakeups import Wakeups
Wakeups.wake = lambda self, *args: {"os.kill(os.getpid(), signal.SIGKILL)" if "before" in moment else "None"}
store = SqliteStore({str(path)!r})
store.open()
store.request_stop(StopRequest(target={run!r})).result()
"""
    author = subprocess.run([sys.executable, "-c", script], timeout=20, check=False)
    assert author.returncode == (-signal.SIGKILL if "before" in moment else 0)
    assert over(supervisor, run).status == "stopped"


def test_sigterm_stops_the_runs_and_writes_them_down_before_the_process_ends(node, supervisor, tmp_path):
    worker = node()
    runs = [worker.start("forever"), worker.start("in_worker", tmp_path / "marks")]
    wait_until(grows(tmp_path / "marks"))
    worker.signal(signal.SIGTERM)
    assert worker.wait() == -signal.SIGTERM
    for run in runs:
        record = supervisor.get(run)
        assert (record.status, record.stop.reason.kind) == ("stopped", "shutdown")


def test_a_second_sigterm_ends_the_process_at_once(node, supervisor, tmp_path):
    worker = node()
    run = worker.start("stubborn", tmp_path / "marks")
    wait_until(grows(tmp_path / "marks"))
    worker.signal(signal.SIGTERM)
    wait_until(lambda: supervisor.get(run).stop is not None)
    worker.signal(signal.SIGTERM)
    assert worker.wait(15) == -signal.SIGTERM  # a graceful stop of it would take 18 s
    assert over(supervisor, run).status == "stopped"  # proven dead, and a stop was pending


def test_sigterm_ends_a_process_whose_store_does_not_answer(node, path):
    """It waits for the ends of its runs and a margin; the next supervisor writes them down."""
    worker = node()
    run = worker.start("forever")
    holder = apsw.Connection(str(path))
    holder.set_busy_timeout(10_000)  # for what the worker is writing now
    holder.execute("BEGIN IMMEDIATE")
    try:
        worker.signal(signal.SIGTERM)
        assert worker.wait(50) == -signal.SIGTERM  # giving up the file alone would take 60 s
    finally:
        holder.close()
    with sync.Supervisor(SqliteStore(path), ttl=TTL) as supervisor:
        assert over(supervisor, run).status == "failed"


def test_a_hold_and_a_bulk_stop_reach_every_process(node, supervisor):
    workers = [node(), node()]
    mine = [worker.start("forever", owner="me") for worker in workers for _ in range(3)]
    other = workers[0].start("forever", owner="you")
    receipts = supervisor.stop_where(owner="me", hold=True)
    assert {receipt.run_id for receipt in receipts} == set(mine)
    assert {over(supervisor, run).status for run in mine} == {"stopped"}
    assert supervisor.get(other).status == "running"


def test_the_commands_of_a_worker_that_is_killed_are_not_left_running(node, supervisor, tmp_path):
    worker = node()
    pids = tmp_path / "pids"
    run = worker.start("commands", pids)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    found = [int(pid) for pid in pids.read_text().split()]
    worker.signal(signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in found))
    assert over(supervisor, run).status == "failed"


def test_nor_are_its_plain_commands_but_those_of_a_run_that_completed_live_on(node, supervisor, tmp_path):
    worker = node()
    pids = tmp_path / "pids"
    run = worker.start("plain_commands", pids)
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 3)
    left, *found = [int(pid) for pid in pids.read_text().split()]
    try:
        wait_until(lambda: "completed" in {below.status for below in supervisor.tree(run)})  # and that is kept
        worker.signal(signal.SIGKILL)
        wait_until(lambda: not any(is_alive(pid) for pid in found))
        assert over(supervisor, run).status == "failed"
        assert is_alive(left)
    finally:
        for pid in filter(is_alive, (left, *found)):
            os.kill(pid, signal.SIGKILL)
