"""With a long history no call reads all of it: EXPLAIN says how a statement finds its rows, and how many it touches."""

import re
import uuid

import psycopg
import pytest

from stoppable._core.values import Status
from stoppable.records import Draft, EventType, Filter, OutcomeRecord, RunRecord, Selector, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url
from stoppable.stores.postgres.pg_transaction import PgSession

from .filled import LIVE, WORKERS, fill

SECONDS = 30
MOST = 1500
"""So many rows of runs and events a call may touch that is about a few of them; there are 360 000."""
LARGE = {"runs", "events", "outcomes", "inputs"}
_READS = re.compile(r"\s*(SELECT|WITH)\b(?!.*\b(INSERT INTO|UPDATE runs|DELETE FROM)\b)", re.DOTALL)
_WRITES = re.compile(r"\s*(WITH|INSERT|UPDATE|DELETE)\b")


@pytest.fixture(scope="module")
def filled(database, tmp_path_factory):
    """A store that every test of the module shares."""
    schema = f"filled_{uuid.uuid4().hex}"
    store = from_url(f"{database}?schema={schema}&locks={tmp_path_factory.mktemp('locks')}")
    store.open()
    fill(store, database, schema)
    yield store
    store.close()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def plans(monkeypatch):
    """The plan of each statement; those that only read are performed for it, so that it says what they touched."""
    found = []
    ask = PgSession.ask

    def explained(session, sql, values=()):
        how = "ANALYZE, " if _READS.match(sql) else "" if _WRITES.match(sql) else None
        if how is not None:
            explain = f"EXPLAIN ({how}TIMING off, FORMAT JSON) {sql}" if how else f"EXPLAIN (FORMAT JSON) {sql}"
            ((plan,),) = ask(session, explain, values).fetchall()
            found.append((sql, plan[0]["Plan"]))
        return ask(session, sql, values)

    perform = PgSession.perform

    def performed(session, sql, values):
        ((plan,),) = perform(session, f"EXPLAIN (FORMAT JSON) {sql}", values).fetchall()
        found.append((sql, plan[0]["Plan"]))
        return perform(session, sql, values)

    monkeypatch.setattr(PgSession, "ask", explained)
    monkeypatch.setattr(PgSession, "perform", performed)
    return found


def nodes(plan):
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def touched(plan):
    """Return how many rows of the large tables a plan has looked at."""
    scans = [node for node in nodes(plan) if node.get("Relation Name") in LARGE and "Actual Loops" in node]
    left_out = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
    return sum(sum(node.get(name, 0) for name in left_out) * node["Actual Loops"] for node in scans)


def check(plans, most=MOST):
    """See that some statements were explained, that none reads a table as a whole, and none a large part of it."""
    assert plans
    for sql, plan in plans:
        whole = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
        assert not {node["Relation Name"] for node in whole} & LARGE, f"{sql}\n{plan}"
        assert touched(plan) <= most, f"{touched(plan)} rows: {sql}\n{plan}"


LISTS = {
    "all": Filter(),
    "owner": Filter(owner="owner 7"),
    "unknown owner": Filter(owner="nobody"),
    "status": Filter(status=frozenset({Status.RUNNING})),
    "live": Filter(status=frozenset({Status.PENDING, Status.RUNNING, Status.STOPPING})),
    "rare status": Filter(status=frozenset({Status.LOST, Status.FAILED})),
    "label": Filter(labels={"team": "team 7"}),
    "label that all have": Filter(labels={"env": "live"}),
    "unknown label": Filter(labels={"team": "nobody's"}),
    "agent": Filter(agent="agent 7"),
    "unknown agent": Filter(agent="nobody"),
    "key": Filter(key="key 77"),
    "parent": Filter(parent_id="run 7000"),
    "roots": Filter(roots=True),
    "roots of an owner": Filter(roots=True, owner="owner 7"),
    "live of an owner": Filter(owner="owner 7", status=frozenset({Status.RUNNING})),
}


@pytest.mark.parametrize("wanted", LISTS.values(), ids=LISTS)
def test_a_list_reads_its_page(filled, plans, wanted):
    first = filled.query(wanted).result(SECONDS)
    if first.cursor is not None:
        filled.query(wanted, first.cursor).result(SECONDS)
    check(plans)


def test_one_run_and_its_tree_and_logs_are_found(filled, plans):
    assert len(filled.tree("run 7000").result(SECONDS)) == 10
    assert filled.get("run 7001").result(SECONDS).id == "run 7001"
    assert len(filled.read("run 7001").result(SECONDS)) == 2
    filled.in_flight(["run 7002", "run 7008"]).result(SECONDS)
    place = filled.tail(0, 10).result(SECONDS).place
    filled.tail(place, 100).result(SECONDS)
    filled.tail(0, 10, below="run 7000").result(SECONDS)
    filled.intents("worker 2").result(SECONDS)
    filled.audit().result(SECONDS)
    check(plans)


def test_a_run_begins_is_stopped_and_ends(filled, plans):
    filled.heartbeat("worker 2", 36_000).result(SECONDS)
    record = (
        filled.register(RunRecord(id="new", name="agent 7", worker="worker 2", key="key"), "r").result(SECONDS).record
    )
    filled.register(RunRecord(id="child", name="agent 7", worker="worker 2", parent_id="new"), "r").result(SECONDS)
    status = Draft(type=EventType.STATUS, data={"status": "running"})
    filled.append("new", record.epoch, [status]).result(SECONDS)
    filled.request_stop(StopRequest(target="new")).result(SECONDS)
    filled.request_stop(StopRequest(target=Selector(key="key"), idempotency_key="k")).result(SECONDS)
    filled.request_stop(StopRequest(target="nobody", if_unknown="wait")).result(SECONDS)
    filled.finish("child", record.epoch, OutcomeRecord(status=Status.STOPPED), None).result(SECONDS)
    filled.finish("new", record.epoch, OutcomeRecord(status=Status.STOPPED), None).result(SECONDS)
    check(plans)


def test_a_plan_from_when_there_were_few_runs_finds_a_run_by_its_id_later(database, plans, tmp_path):
    schema = f"few_{uuid.uuid4().hex}"
    store = from_url(f"{database}?schema={schema}&locks={tmp_path}")
    store.open()
    store.open_worker(WorkerInfo(id="worker"), 36_000).result(SECONDS)
    for run in map(str, range(10)):  # after five times a plan may be kept
        store.register(RunRecord(id=run, name="agent", worker="worker"), run).result(SECONDS)
        store.request_stop(StopRequest(target=run)).result(SECONDS)
    store.close()
    prepared = [plan for sql, plan in plans if sql.startswith("EXECUTE")]
    found = [
        node for plan in prepared for node in nodes(plan) if node.get("Relation Name") in LARGE and "Index Name" in node
    ]
    read = {(node["Index Name"], node.get("Index Cond", "all of it").split()[0]) for node in found}
    assert read == {
        ("runs_id_key", "(id"),
        ("runs_by_parent", "(parent"),
        ("outcomes_pkey", "(run"),
        ("inputs_pkey", "(run"),
    }


@pytest.mark.parametrize(
    "target",
    [
        Selector(owner="owner 9"),
        Selector(labels={"team": "team 12"}),
        Selector(agent="agent 9"),
        Selector(key="key 99"),
    ],
)
def test_a_stop_of_many_reads_the_live_ones_and_those_below_them(filled, plans, target):
    assert filled.request_stop(StopRequest(target=target)).result(SECONDS).answers
    check(plans, most=2 * LIVE)


def test_the_runs_of_a_worker_that_is_gone_are_found(filled, plans):
    filled.close_worker("worker 4").result(SECONDS)
    assert len(filled.reap(100).result(SECONDS)) == 100
    check(plans, most=2 * LIVE // WORKERS)
    plans.clear()
    assert filled.reap(100).result(SECONDS)
    check(plans, most=2 * LIVE // WORKERS)


def test_old_trees_are_found_and_forgotten(filled, plans):
    assert filled.purge(30_000, 50).result(SECONDS) == 50
    check(plans, most=2 * MOST)
