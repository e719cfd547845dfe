"""A connection is lost when the database has kept a change and has not yet said so: it is made once all the same."""

import contextlib

import pytest
from tests.proxy import Proxy

from stoppable._core.stop import Answer
from stoppable._core.values import Status
from stoppable.records import Draft, EventType, OutcomeRecord, RunRecord, Selector, StopIntent, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url, pg_stops

SECONDS = 60
COMMITTED = b"COMMIT\0"  # how the server says that a transaction is kept


class Cut:
    """A store behind a proxy, and one that looks."""

    def __init__(self, proxy, store, looking):
        self._proxy = proxy
        self.store = store
        self._looking = looking

    def losing(self, make, at=COMMITTED, turn=1):
        """Make a call, and lose the connection instead of an answer, the first of its kind or a later one."""
        self._proxy.cut_at(at, turn)
        answer = make(self.store).result(SECONDS)
        assert self._proxy.has_cut, "the answer is not lost"
        return answer

    def start(self, run_id, **fields):
        return self.store.register(_run(run_id, **fields), "r").result(SECONDS).record

    def log(self, run_id="a"):
        return [event.type.value for event in self._looking.read(run_id).result(SECONDS)]

    def get(self, run_id="a"):
        return self._looking.get(run_id).result(SECONDS)

    def audit(self):
        return [(entry.action, entry.result) for entry in self._looking.audit().result(SECONDS)]

    def holds(self):
        return list(self._looking.holds().result(SECONDS))


def _run(run_id, **fields):
    return RunRecord(id=run_id, name="agent", worker="w", **fields)


@pytest.fixture
def cut(server, url):
    with Proxy(server.port) as proxy, contextlib.ExitStack() as stack:
        opened = [from_url(url.replace(f":{server.port}/", f":{proxy.port}/")), from_url(url)]
        for store in opened:
            store.open()
            stack.callback(store.close)
        opened[0].open_worker(WorkerInfo(id="w"), 3600).result(SECONDS)
        yield Cut(proxy, *opened)


def answers(result):
    return {each.record.id: each.answer for each in result.answers}


def test_a_stop_is_accepted_once(cut):
    cut.start("a")
    result = cut.losing(lambda store: store.request_stop(StopRequest(target="a")))
    assert (answers(result), result.answers[0].record) == ({"a": Answer.ACCEPTED}, cut.get())
    assert cut.audit() == [("stop", {"runs": {"a": "accepted"}, "hold": None, "owner": None})]


def test_a_stop_with_a_key_is_accepted_once(cut):
    cut.start("a")
    result = cut.losing(lambda store: store.request_stop(StopRequest(target="a", idempotency_key="k")))
    assert answers(result) == {"a": Answer.ACCEPTED}
    assert len(cut.audit()) == 1


def test_the_stop_of_a_tree_is_accepted_once(cut):
    cut.start("a")
    cut.start("b", parent_id="a")
    # Its first transaction finds out that it takes a second.
    result = cut.losing(lambda store: store.request_stop(StopRequest(target="a")), turn=2)
    assert answers(result) == {"a": Answer.ACCEPTED}
    assert len(cut.audit()) == 1


def test_a_bulk_stop_places_one_hold(cut):
    cut.start("a", owner="ann")
    result = cut.losing(lambda store: store.request_stop(StopRequest(target=Selector(owner="ann"), hold=True)))
    assert (answers(result), cut.holds()) == ({"a": Answer.ACCEPTED}, [result.hold])
    assert len(cut.audit()) == 1


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_bulk_stop_in_parts_places_one_hold_and_accepts_each_once(cut, monkeypatch, turn):
    monkeypatch.setattr(pg_stops, "PART", 1)
    for run_id in "abc":
        cut.start(run_id, owner="ann")
    result = cut.losing(
        lambda store: store.request_stop(StopRequest(target=Selector(owner="ann"), hold=True)), turn=turn
    )
    assert (answers(result), cut.holds()) == (dict.fromkeys("abc", Answer.ACCEPTED), [result.hold])
    assert len(cut.audit()) == 1


def test_events_are_added_once(cut):
    record = cut.start("a")
    draft = Draft(type=EventType.PROGRESS, data={})
    assert cut.losing(lambda store: store.append("a", record.epoch, [draft])) == 1
    assert cut.log() == ["progress"]


def test_a_run_is_created_once(cut):
    assert cut.losing(lambda store: store.register(_run("a"), "r")).created


def test_an_end_is_not_a_late_one(cut):
    record = cut.start("a")
    outcome = OutcomeRecord(status=Status.COMPLETED)
    kept = cut.losing(lambda store: store.finish("a", record.epoch, outcome, None))
    assert kept == cut.get()
    assert (kept.ended_late, cut.log()) == (None, ["status", "done"])


def test_a_hold_is_placed_once_and_released_once(cut):
    hold = cut.losing(lambda store: store.place_hold(Selector(owner="ann"), StopIntent()))
    assert cut.holds() == [hold]
    assert cut.losing(lambda store: store.release(hold.id)) == hold
    assert [action for action, _ in cut.audit()] == ["hold", "release"]


def test_a_change_that_was_not_kept_is_made_again(cut):
    """The connection is lost when the transaction has begun."""
    record = cut.start("a")
    draft = Draft(type=EventType.PROGRESS, data={})
    assert cut.losing(lambda store: store.append("a", record.epoch, [draft]), at=b"BEGIN\0") == 1
    assert cut.log() == ["progress"]
