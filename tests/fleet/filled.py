"""A database with a long history: what is slow there, or reads all of it, shows."""

import psycopg

from stoppable.records import RunRecord
from stoppable.stores.base import WorkerInfo

FINISHED, LIVE = 100_000, 20_000
WORKERS = 20

# Each tree has ten runs, and every sixth tree is live. What does not matter here is that of the first run.
_RUNS = """
INSERT INTO runs (number, id, request, parent, parent_id, root_id, name, owner, labels, spec, created_at, worker,
 status, epoch, started_at, ended_at, outcome, key, last_event)
SELECT n, 'run ' || n, 'r', CASE WHEN n %% 10 > 0 THEN n - n %% 10 END,
 CASE WHEN n %% 10 > 0 THEN 'run ' || n - n %% 10 END,
 'run ' || n - n %% 10, 'agent ' || n / 10 %% 49, 'owner ' || n / 10 %% 199,
 jsonb_build_object('team', 'team ' || n %% 299, 'env', 'live'), spec, n, 'worker ' || n %% %(workers)s,
 CASE WHEN n / 10 %% 6 = 0 THEN 'running' ELSE 'completed' END, 1, n, CASE WHEN n / 10 %% 6 > 0 THEN n + 1 END,
 CASE WHEN n / 10 %% 6 > 0 THEN '{"status": "completed"}' END, '"key ' || n / 60 || '"', 2
FROM runs, generate_series(10, %(last)s) AS n WHERE id = 'first'
"""
_EVENTS = """
INSERT INTO events (run, seq, at, type, data)
SELECT n, seq, n, 'status', '{"status": "running"}'
FROM generate_series(10, %(last)s) AS n, generate_series(1, 2) AS seq
"""


def fill(store, url, schema, runs=FINISHED + LIVE):
    """Give an empty store that is open a history, with ``worker 0`` and so on for its live runs."""
    for number in range(WORKERS):
        store.open_worker(WorkerInfo(id=f"worker {number}"), 36_000).result(30)
    store.register(RunRecord(id="first", name="agent", worker="worker 0"), "first").result(30)
    values = {"workers": WORKERS, "last": runs + 9}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {schema}")
        connection.execute("SELECT setval('run_numbers', %(last)s + 1)", values)
        connection.execute(_RUNS, values)
        connection.execute(_EVENTS, values)
        connection.execute("INSERT INTO outcomes SELECT number, outcome FROM runs WHERE ended_at IS NOT NULL")
        connection.execute("INSERT INTO inputs SELECT number, '[null, {}]' FROM runs")
        # of all rows and not of some: a plan would depend on which
        connection.execute("ALTER TABLE runs ALTER labels SET STATISTICS 1000")
        connection.execute("VACUUM ANALYZE")
