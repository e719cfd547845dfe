"""The supervisor for blocking code does the same, and waits on its thread."""

import threading

import pytest

import stoppable
from stoppable import sync
from stoppable.errors import InvalidArgument, RunConflict, RunFailed, RunHeld, RunStopped


def forever():
    sync.sleep(3600)


async def forever_async():
    await stoppable.sleep(3600)


def steps(count):
    for number in range(count):
        with stoppable.boundary("tool"):
            stoppable.append_partial(f"{number} ")
    return count


async def steps_async(count):
    return steps(count)


def broken():
    raise ValueError("no")


def test_agents_of_both_kinds_are_started_stopped_and_kept(store):
    with sync.Supervisor(store) as supervisor:
        done, also = supervisor.start(steps, 2, owner="me"), supervisor.start(steps_async, 2)
        assert (done.result(), also.result()) == (2, 2)
        assert (done.record().status, done.record().outcome.partial, done.record().owner) == ("completed", "0 1 ", "me")
        hanging, waiting = supervisor.start(forever), supervisor.start(forever_async)
        receipt = supervisor.stop(hanging.id, reason="enough", wait=5)
        assert (receipt.final, receipt.status) == (True, "stopped")
        assert waiting.stop().answer == "accepted"
        with pytest.raises(RunStopped):
            waiting.result()
        with pytest.raises(RunFailed) as caught:
            supervisor.start(broken).result()
        assert isinstance(caught.value.__cause__, ValueError)
        assert len(supervisor.list().runs) == 5
        assert [record.id for record in supervisor.tree(done.id)] == [done.id]
        assert [event.type for event in done.events()][-1] == "done"
        by_id = supervisor.handle(done.id)
        assert (by_id.id, by_id.result(), by_id.outcome().status) == (done.id, 2, "completed")
        assert done.id in repr(by_id)
        assert by_id.receipt() is None
        for look in (lambda: by_id.status, lambda: by_id.run, lambda: next(by_id.stream())):
            with pytest.raises(InvalidArgument, match=r"is not executed by this process: use (record|events)\(\)"):
                look()


def test_existing_code_is_a_run(store):
    with sync.Supervisor(store) as supervisor:
        with pytest.raises(RunStopped):
            with supervisor.open_run("job", run_id="job-1"):
                stopper = threading.Thread(target=supervisor.stop, args=("job-1",))
                stopper.start()
                stopper.join(60)
                stoppable.check()
        assert supervisor.get("job-1").status == "stopped"
        with pytest.raises(RunConflict):
            with supervisor.open_run("job", run_id="job-1"):
                pass
        assert supervisor.stop("job-2", if_unknown="wait", wait=5).status == "pending"
        with pytest.raises(RunStopped):
            with supervisor.open_run("job", run_id="job-2"):
                raise AssertionError("its body never runs")


def test_many_are_stopped_and_held_at_once(store):
    with sync.Supervisor(store) as supervisor:
        handles = [supervisor.start(forever, owner="me") for _ in range(3)]
        assert len(supervisor.stop_where(owner="me", dry_run=True)) == 3
        receipts = supervisor.stop_where(owner="me", hold=True, actor="ops")
        assert {handle.outcome().status for handle in handles} == {"stopped"}
        with pytest.raises(RunHeld):
            supervisor.start(forever, owner="me")
        also = supervisor.hold(owner="you", reason="quiet")
        assert [hold.id for hold in supervisor.holds()] == [receipts.hold.id, also.id]
        for hold in supervisor.holds():
            supervisor.release(hold.id)
        assert [entry.action for entry in supervisor.audit()] == ["stop", "hold", "release", "release"]


def test_leaving_stops_what_still_runs(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(forever)
    assert handle.status == "stopped"
    assert handle.run.token.reason.kind == "shutdown"
