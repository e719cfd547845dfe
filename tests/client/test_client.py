"""The client against a real server: the supervisor's records and errors, over HTTP."""

import pytest
from fastapi import Header

import stoppable
from stoppable.client import ServerUnreachable
from stoppable.errors import HoldNotFound, InvalidArgument, RunConflict, RunHeld, RunNotFound
from stoppable.records import EventType, Hold, RunRecord
from stoppable.server import Principal

from ..server.serving import served as serving


def wait_until_running(client, run_id):
    for event in client.events(run_id):
        if event.type is EventType.STATUS and event.data["status"] == "running":
            return


def test_a_run_is_started_stopped_and_its_receipt_read(client):
    handle = client.start("calling", {"seconds": 0.05}, owner="ann", labels={"team": "x"})
    record = handle.record()
    assert isinstance(record, RunRecord)
    assert (record.name, record.owner, dict(record.labels)) == ("calling", "ann", {"team": "x"})
    assert client.receipt(record.id) is None
    for event in client.events(record.id):
        if event.type is EventType.PARTIAL:
            break
    receipt = client.stop(record.id, reason="enough", wait=30)
    assert (receipt.status, receipt.answer, str(receipt.reason)) == ("stopped", "accepted", "enough (local)")
    assert receipt.final
    ended = client.get(record.id)
    assert ended.outcome.partial.startswith("answer 0")
    assert client.receipt(record.id).entries == receipt.entries


def test_a_handle_stops_follows_and_waits_as_one_of_the_supervisor_does(client):
    handle = client.start("waiting")
    assert handle.last_record.name == "waiting"
    assert handle.wait(0.01).over is False
    assert handle.receipt() is None
    assert handle.stop(reason="enough", wait=30).status == "stopped"
    assert handle.wait().outcome.status == handle.wait(30).status == "stopped"
    assert list(handle.events())[-1].type is EventType.DONE
    assert handle.receipt().reason.message == "enough"


def test_a_handle_of_an_id_needs_no_request_until_it_is_used(client):
    started = client.start("echo", {"value": 7})
    handle = client.handle(started.id)
    assert (handle.id, handle.last_record) == (started.id, None)
    assert handle.result() == 7
    assert handle.outcome().status == "completed"
    with pytest.raises(stoppable.RunNotFound):
        client.handle("unknown").outcome()


def test_a_stop_again_changes_nothing_and_a_harder_one_escalates(client):
    record = client.start("stubborn")
    wait_until_running(client, record.id)
    assert client.stop(record.id, reason="first").answer == "accepted"
    assert client.stop(record.id, reason="second").answer == "already_stopping"
    receipt = client.stop(record.id, "kill", wait=30)
    assert (receipt.answer, receipt.mode, receipt.reason.message) == ("escalated", "kill", "first")
    assert client.stop(record.id).answer == "already_finished"


def test_inputs_are_keywords_or_a_single_argument(client):
    for given, expected in (({"value": 1}, 1), ([1, {"a": None}], [1, {"a": None}]), ("text", "text"), (None, None)):
        with client.run("echo", given) as run:
            assert run.result() == expected
            assert run.outcome().status == "completed"


def test_result_raises_as_the_supervisor_does(client):
    with client.run("failing") as run, pytest.raises(stoppable.RunFailed) as failed:
        run.result()
    assert "it went wrong" in str(failed.value.__cause__)
    with client.run("waiting") as run, pytest.raises(stoppable.RunStopped) as stopped:
        wait_until_running(client, run.id)
        run.stop(reason="enough")
        run.result()
    assert stopped.value.outcome.partial == "so far"


def test_a_list_is_filtered_and_paged(client, unique):
    ids = [client.start("echo", labels={"list": unique}).id for _ in range(3)]
    first = client.list(labels={"list": unique}, agent="echo", limit=2)
    second = client.list(labels={"list": unique}, agent="echo", limit=2, cursor=first.cursor)
    assert [summary.id for summary in (*first.runs, *second.runs)] == ids[::-1]
    assert (first.runs[0].name, dict(first.runs[0].labels), first.runs[0].error) == ("echo", {"list": unique}, None)
    assert client.list(labels={"list": "nobody"}).runs == ()
    assert "echo" in client.agents()


def test_a_tree_is_stopped_as_one(client):
    record = client.start("parent")
    for _ in client.events(record.id):
        if len(client.tree(record.id)) == 3:
            break
    client.stop(record.id, wait=30)
    assert [(one.name, one.status) for one in client.tree(record.id)] == [
        ("parent", "stopped"),
        ("waiting", "stopped"),
        ("waiting", "stopped"),
    ]
    assert len(client.list(parent=record.id).runs) == 2


def test_bulk_stop_with_preview_hold_and_release(client, unique):
    for _ in range(2):
        client.start("waiting", owner=unique)
    preview = client.stop_where(owner=unique, dry_run=True)
    assert len(preview) == 2
    assert {client.get(one.run_id).status for one in preview} <= {"pending", "running"}
    stopped = client.stop_where(owner=unique, hold=True, reason=unique)
    assert {one.run_id for one in stopped} == {one.run_id for one in preview}
    assert isinstance(stopped.hold, Hold)
    assert stopped.hold.selector.owner == unique
    with pytest.raises(RunHeld) as held:
        client.start("waiting", owner=unique)
    assert (held.value.hold_id, held.value.reason) == (stopped.hold.id, unique)
    assert stopped.hold in client.holds()
    client.release(stopped.hold.id)
    with pytest.raises(HoldNotFound):
        client.release(stopped.hold.id)
    assert any(entry.reason == unique for entry in client.audit(limit=1000))


@pytest.mark.parametrize("empty", [{"owner": "", "agent": "waiting"}, {"owner": "ann", "agent": ""}])
def test_an_empty_name_in_a_selector_means_no_more_runs(client, empty):
    with pytest.raises(InvalidArgument, match=r"selector\.(owner|agent)"):
        client.stop_where(**empty, dry_run=True)


def test_the_audit_of_one_owner_is_found_among_that_of_others(connect):
    async def caller(authorization: str = Header()) -> Principal:
        name = authorization.removeprefix("Bearer ")
        return Principal(owner=None if name == "root" else name, sees_all=name == "root", actor=name)

    with serving([], principal=caller) as service:
        root, ann = (connect(service.url, api_key=name) for name in ("root", "ann"))
        for owner in ("bob", "bob", "bob", "ann", "bob", "ann"):
            root.stop_where(owner=owner)
        assert [entry.id for entry in ann.audit(limit=1)] == [4]
        assert [entry.id for entry in ann.audit(limit=2)] == [4, 6]
        assert [entry.id for entry in ann.audit(after=4, limit=1)] == [6]
        assert ann.audit(after=6) == ()


def test_a_hold_of_an_agent_keeps_its_name(client):
    hold = client.stop_where(agent="nobody-runs-this", hold=True).hold
    assert hold.selector.agent == "nobody-runs-this"
    client.release(hold.id)


def test_the_errors_of_the_library_come_back_as_themselves(client, unique):
    with pytest.raises(RunNotFound) as unknown:
        client.get("nope")
    assert unknown.value.run_id == "nope"
    with pytest.raises(RunNotFound):
        list(client.events("nope"))
    with pytest.raises(RunNotFound):
        client.stop("no/such run?x=1")
    with pytest.raises(InvalidArgument, match="no agent 'nope'"):
        client.start("nope")
    with pytest.raises(InvalidArgument, match="mode"):
        client.stop("nope", "gently")
    with pytest.raises(InvalidArgument, match="empty selector"):
        client.stop_where()
    client.start("echo", 1, run_id=unique)
    with pytest.raises(RunConflict) as conflict:
        client.start("echo", 2, run_id=unique)
    assert conflict.value.run_id == unique


def test_a_server_that_is_not_there_is_one_clear_sentence(connect):
    client = connect("http://127.0.0.1:1", retry_seconds=0.1)
    with pytest.raises(ServerUnreachable, match=r"127\.0\.0\.1:1.*stoppable serve.*STOPPABLE_URL"):
        client.list()
    with pytest.raises(ServerUnreachable):
        list(client.events("any"))
    assert isinstance(ServerUnreachable("x"), ConnectionError)


def test_the_address_and_the_key_come_from_the_environment(connect, server, monkeypatch):
    monkeypatch.setenv("STOPPABLE_URL", server + "/")
    assert connect().url == server
    monkeypatch.delenv("STOPPABLE_URL")
    assert connect().url == "http://127.0.0.1:8420"
    with pytest.raises(InvalidArgument, match="is not the URL"):
        connect("localhost:8420")


def test_however_many_runs_are_followed_there_is_room_for_a_stop(connect, server):
    client = connect(server, timeout=30.0, retry_seconds=0.0)
    run_id = client.start("waiting").id
    streams = [client.events(run_id) for _ in range(101)]
    for stream in streams:
        assert next(stream).seq == 1
    assert client.stop(run_id).answer == "accepted"
    for stream in streams:  # to its end: one that is left in the middle is closed when the loop has time for it
        assert [event.type for event in stream][-1] == "done"


def test_events_after_the_end_are_none(client):
    with client.run("echo") as run:
        run.outcome()
        last = run.record().last_event
    assert list(client.events(run.id, last)) == []
    assert [event.seq for event in client.events(run.id, last - 1)] == [last]


def test_a_block_left_by_an_error_stops_its_run(client):
    with pytest.raises(ZeroDivisionError), client.run("waiting") as run:
        wait_until_running(client, run.id)
        raise ZeroDivisionError("own")
    record = client.get(run.id)
    assert record.stop.reason.message == "its block was left by ZeroDivisionError: own"
    assert client.stop(run.id, wait=30).status == "stopped"


def test_a_block_left_in_order_leaves_its_run_alone(client):
    with client.run("waiting") as run:
        pass
    assert client.get(run.id).stop is None
    client.stop(run.id, "kill")


def test_a_start_that_is_refused_is_not_taken_back(client, unique):
    client.start("waiting", run_id=unique)
    with pytest.raises(RunConflict), client.run("waiting", {}, run_id=unique), client.run("echo", 5, run_id=unique):
        pass
    client.stop(unique, "kill")


def test_a_stop_may_come_before_its_start(client, unique):
    assert client.stop(unique, if_unknown="wait").status == "pending"
    assert client.start("waiting", run_id=unique).last_record.status == "stopped"
