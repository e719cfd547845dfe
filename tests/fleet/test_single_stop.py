"""A stop of one run takes one round trip; what makes it take the longer way changes nothing of it."""

from stoppable import Reason
from stoppable.records import Draft, EventType, StopIntent, StopRequest
from stoppable.stores.postgres import pg_stops

from .test_wakeups import SECONDS, Heard, backends, begin, cut, stores

__all__ = ["stores"]


def stop(store, run_id="a", **options):
    (answered,) = store.request_stop(StopRequest(target=run_id, intent=StopIntent(**options))).result(SECONDS).answers
    return answered


def test_the_statement_alone_keeps_and_tells_a_stop(stores, monkeypatch):
    """What it answers is what the longer way would: the record, an event, an entry of the audit."""
    here, there = stores
    begin(here)
    here.append("a", 1, [Draft(type=EventType.STATUS, data={"status": "running"})]).result(SECONDS)
    heard = Heard(here)
    heard.wait_for_first_look()
    ways = []
    short = pg_stops._stop_leaf
    monkeypatch.setattr(pg_stops, "_stop_leaf", lambda *given: ways.append(short(*given)) or ways[-1])
    answered = stop(there, reason=Reason(message="enough", actor="ann"))
    assert [way is not None for way in ways] == [True]
    heard.wait_for("a")
    assert answered.answer == "accepted"
    assert answered.record == here.get("a").result(SECONDS)
    event = here.read("a").result(SECONDS)[-1]
    told = {"status": "stopping", "mode": "graceful", "reason": "enough", "actor": "ann"}
    assert (event.seq, event.data) == (2, told)
    (entry,) = here.audit().result(SECONDS)
    assert (entry.actor, entry.result) == ("ann", {"runs": {"a": "accepted"}, "hold": None, "owner": None})
    assert stop(there).answer == "already_stopping"
    assert [way is not None for way in ways] == [True, False]


def test_a_stop_whose_reason_is_too_long_for_a_notification_arrives(stores):
    here, there = stores
    begin(here)
    heard = Heard(here)
    heard.wait_for_first_look()
    assert stop(there, reason=Reason(message='"' * 4000)).answer == "accepted"
    heard.wait_for("a")


def test_a_stop_over_a_connection_that_was_lost_is_made_again(url, stores):
    here, there = stores
    begin(there)
    cut(url, *backends(url, there))
    assert stop(there).answer in {"accepted", "already_stopping"}
    assert here.get("a").result(SECONDS).stop is not None
