"""Calls that want a few runs do not read all of them: EXPLAIN QUERY PLAN says how SQLite finds the rows."""

from contextlib import closing

import apsw
import pytest

from stoppable._core.values import Status
from stoppable.records import Filter, RunRecord
from stoppable.stores.base import WorkerInfo
from stoppable.stores.sql import queries
from stoppable.stores.sqlite.lite_transaction import LiteSession

CALLS = {
    "tree": lambda session: queries.tree(session, "a"),
    "get": lambda session: queries.get(session, "a"),
    "children": lambda session: queries.query(session, Filter(parent_id="a"), None, 10),
    "owner": lambda session: queries.query(session, Filter(owner="ann"), None, 10),
    "label": lambda session: queries.query(session, Filter(labels={"team": "a"}), None, 10),
    "status": lambda session: queries.query(session, Filter(status=(Status.RUNNING,)), None, 10),
    "intents": lambda session: queries.intents(session, "w"),
    "log": lambda session: queries.read(session, "a", 0, 10),
    "logs of a tree": lambda session: queries.tail(session, 0, 10, (), "a"),
}


class Explained(LiteSession):
    """Notes the plan of each statement, and answers it."""

    def __init__(self, connection):
        super().__init__(connection)
        self.plans = []

    def all(self, sql, values=()):
        self.plans += [detail for *_, detail in super().all(f"EXPLAIN QUERY PLAN {sql}", values)]
        return super().all(sql, values)

    def some(self, sql, values, order, size):
        self.plans += [detail for *_, detail in super().all(f"EXPLAIN QUERY PLAN {sql}", values)]
        return super().some(sql, values, order, size)


@pytest.mark.parametrize("call", CALLS)
def test_no_call_reads_all_runs(store, path, call):
    store.open_worker(WorkerInfo(id="w"), 60).result()
    store.register(RunRecord(id="a", name="agent", worker="w"), "a").result()
    with closing(apsw.Connection(str(path))) as connection:
        session = Explained(connection)
        CALLS[call](session)
    assert session.plans
    assert not [step for step in session.plans if step.startswith("SCAN runs")]
