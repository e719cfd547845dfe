"""Values of a megabyte cost nobody memory or time who did not ask for them."""

import json
import tracemalloc

import apsw
import pytest

from stoppable._core.values import Status
from stoppable.records import Draft, EventType, Filter, OutcomeRecord
from stoppable.stores.sqlite.lite_connection import APPLICATION_ID, MIGRATIONS

from .sqlite_tools import started

LARGE = 900_000


@pytest.fixture
def traced():
    tracemalloc.start()
    yield
    tracemalloc.stop()


def peak_of(call):
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    found = call()
    return found, tracemalloc.get_traced_memory()[1] - before


def test_a_list_loads_no_results(open_store, traced):
    store = open_store()
    outcome = OutcomeRecord(status=Status.COMPLETED, result="x" * LARGE)
    for number in range(20):
        record = started(store, str(number))
        store.finish(record.id, record.epoch, outcome, None).result()
    page, peak = peak_of(store.query(Filter()).result)
    assert len(page.runs) == 20
    assert peak < LARGE
    assert store.get("7").result().outcome.result == "x" * LARGE


def test_a_log_of_large_events_is_read_one_at_a_time_and_each_once(open_store, traced):
    store = open_store()
    record = started(store, "a")
    for _ in range(10):
        store.append("a", record.epoch, [Draft(type=EventType.PROGRESS, data={"text": "x" * LARGE})]).result()
    seen = [event.seq for event in store.read("a").result()][:-1]
    while True:
        events, peak = peak_of(store.read("a", len(seen)).result)
        assert peak < 4 * LARGE, "its text, its data, and what it takes to make them"
        if not events:
            break
        assert len(events) == 1
        seen += [event.seq for event in events]
    assert seen == list(range(1, len(seen) + 1))
    assert len(store.tail(0, 100).result().events) < 5
    assert store.tail(0, 100).result().has_more


def test_a_file_of_the_first_schema_is_brought_up_to_date_with_its_large_outcomes(path, open_store):
    outcome = {"status": "failed", "result": None, "partial": "p" * LARGE, "error": {"type": "E", "message": "m" * 900}}
    outcome |= {"reason": None, "rung": None, "clean": True, "omitted": {}}
    spec = json.dumps(["auto", "keep", None, {}, 1])
    file = apsw.Connection(str(path))
    file.pragma("journal_mode", "wal")
    file.execute(MIGRATIONS[0])
    for number, text in enumerate((json.dumps(outcome), json.dumps({"status": "completed", "result": 7}))):
        file.execute(
            "INSERT INTO runs (id, request, root_id, name, labels, spec, created_at, worker, status, epoch, ended_at,"
            " outcome) VALUES (?, '', ?, 'agent', ?, ?, 1, 'w', ?, 2, 5, ?)",
            (
                str(number),
                str(number),
                ("{}", '{"team": "a\u00e9"}')[number],
                spec,
                ("failed", "completed")[number],
                text,
            ),
        )
    file.pragma("application_id", APPLICATION_ID)
    file.pragma("user_version", 1)
    file.close()
    store = open_store()
    whole = store.get("0").result().outcome
    assert (whole.partial, whole.error.message) == ("p" * LARGE, "m" * 900)
    assert store.get("1").result().outcome.result == 7
    first, second = store.query(Filter()).result().runs
    assert (first.status, second.status, second.error) == ("completed", "failed", f"E: {'m' * 497}")
    assert [run.id for run in store.query(Filter(labels={"team": "aé"})).result().runs] == ["1"]
    assert store.purge(10).result() == 2
    store.close()
    file = apsw.Connection(str(path))
    for table in ("outcomes", "run_labels"):
        assert file.execute(f"SELECT count(*) FROM {table}").get == 0
    file.close()
