"""The contract sees deliberate mistakes in the Postgres store: each makes every test that is named for it fail.

Without a mistake the same tests pass: they are part of this folder.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "stoppable"
CONTRACT = "tests/fleet/test_postgres.py::TestPostgresStore::"
FORCED = "tests/fleet/test_forced_orders.py::"
TREE = FORCED + "test_a_stop_of_a_tree_sees_the_child_that_is_being_born"
LEAF = "tests/fleet/test_single_stop.py::"
LOST = "tests/fleet/test_lost_answers.py::"
SECONDS = 140  # only what hangs takes so long

RACES = (
    "test_a_stop_and_the_start_of_its_run_in_two_processes_do_not_miss_each_other",
    "test_a_stop_of_a_key_and_a_start_in_two_processes_do_not_miss_each_other",
    "test_a_hold_and_starts_in_two_processes_do_not_miss_each_other",
    "test_a_tree_and_children_that_are_born_in_another_process_stop_together",
    "test_a_run_that_starts_while_its_worker_is_given_up_does_not_stay_behind",
    "test_of_many_starts_with_one_id_in_two_processes_one_creates_the_run",
    "test_of_many_ends_in_two_processes_one_wins",
    "test_events_added_in_two_processes_have_dense_numbers",
)
"""Those of the contract over two stores of one database."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    snippet: str
    replacement: str
    caught_by: tuple[str, ...]


MUTANTS = (
    Mutant(
        "no locks at all",
        "pg_connection.py",
        "    patience: float | None = None\n",
        "    patience: float | None = None\n    from tests.fleet.unlocked import execute\n",
        tuple(CONTRACT + race for race in RACES),
    ),
    Mutant(
        "no compare-and-set",
        "pg_runs.py",
        "    if record.over or record.epoch != epoch:\n",
        "    if False:\n",
        (FORCED + "test_of_two_ends_the_second_sees_the_first",),
    ),
    Mutant(
        "no row is locked before an end",
        "pg_runs.py",
        "is_truncated FROM runs WHERE id = %s FOR NO KEY UPDATE OF runs",
        "is_truncated FROM runs WHERE id = %s",
        (FORCED + "test_of_two_ends_the_second_sees_the_first",),
    ),
    Mutant(
        "no re-read after a reconnect",
        "notifications.py",
        "        self._tell(new)\n",
        "",
        ("tests/fleet/test_wakeups.py::test_a_stop_that_nobody_heard_is_seen_after_the_reconnect",),
    ),
    Mutant(
        "blind spawn",
        "pg_runs.py",
        '_PARENT = f"{_BY_ID} FOR SHARE OF runs"',
        "_PARENT = _BY_ID",
        (TREE,),
    ),
    Mutant(
        "snapshot tree",
        "pg_stops.py",
        "again, named = tx.ask(sql, values), ",
        "again, named = first, ",
        (TREE,),
    ),
    Mutant(
        "late lease",
        "pg_leases.py",
        "machine.boot, tx.now() + ttl, ttl)",
        "machine.boot, 1e18, ttl)",
        (CONTRACT + "test_a_worker_that_dies_before_its_first_heartbeat_is_seen",),
    ),
    Mutant(
        "no lock of a name",
        "pg_transaction.py",
        '        self._lock(f"{kind} {name}", "_shared" if shared else "")\n',
        "        pass\n",
        (
            FORCED + "test_a_start_sees_the_stop_that_is_being_written",
            FORCED + "test_a_start_sees_the_hold_that_is_being_placed",
        ),
    ),
    Mutant(
        "numbers are seen out of order",
        "pg_transaction.py",
        '            self._lock("order", "")\n',
        "            pass\n",
        ("tests/fleet/test_order.py::test_a_reader_that_reads_on_sees_an_entry_that_is_committed_later",),
    ),
    Mutant(
        "a start does not hold its worker",
        "pg_runs.py",
        "state = 'open' FOR KEY SHARE",
        "state = 'open'",
        (FORCED + "test_a_reaper_sees_the_start_that_is_being_written",),
    ),
    Mutant(
        "a stop in one statement overwrites another",
        "pg_stops.py",
        " AND {_IS_LIVE} AND mode < 0\n",
        "\n",
        (
            CONTRACT + "test_a_stop_that_is_no_harder_changes_nothing",
            CONTRACT + "test_a_harder_stop_escalates_and_the_first_reason_and_time_stay",
        ),
    ),
    Mutant(
        "a stop in one statement forgets the subtree",
        "pg_stops.py",
        "        AND NOT EXISTS (SELECT 1 FROM runs AS child WHERE child.parent = runs.number)\n",
        "",
        (CONTRACT + "test_a_stop_marks_the_whole_subtree_and_nothing_else",),
    ),
    Mutant(
        "a stop in one statement does not wait for the run",
        "pg_stops.py",
        '    tx.perform(_LOCK_LEAF, {"order": tx.order_key(), "id": run_id})\n',
        "",
        (FORCED + "test_a_stop_of_a_run_without_children_sees_its_first_that_is_being_born",),
    ),
    Mutant(
        "a stop in one statement tells nobody",
        "pg_stops.py",
        " WHERE (SELECT count(*) FROM notification) >= 0",
        "",
        (LEAF + "test_the_statement_alone_keeps_and_tells_a_stop",),
    ),
    Mutant(
        "a stop in one statement reaches the runs of another owner",
        "pg_stops.py",
        " AND (%(owner)s::text IS NULL OR owner = %(owner)s) AND {_IS_LIVE}",
        " AND {_IS_LIVE}",
        (CONTRACT + "test_a_run_of_another_owner_is_not_found",),
    ),
    Mutant(
        "a stop in one statement is made again with the same key",
        "pg_stops.py",
        "NOT EXISTS (SELECT 1 FROM answered WHERE key = %(key)s AND",
        "NOT EXISTS (SELECT 1 FROM answered WHERE false AND",
        (CONTRACT + "test_the_same_key_is_the_same_request_whatever_it_names",),
    ),
    Mutant(
        "a stop in one statement is not known again",
        "pg_stops.py",
        '"key": request.idempotency_key or pending.id,',
        '"key": request.idempotency_key,',
        (LOST + "test_a_stop_is_accepted_once",),
    ),
    Mutant(
        "nobody asks what became of a transaction",
        "pg_engine.py",
        "                if connection.closed and transaction.may_be_kept:\n",
        "                if False:\n",
        (LOST + "test_events_are_added_once", LOST + "test_an_end_is_not_a_late_one"),
    ),
    Mutant(
        "a transaction that was not kept is made again from its first part",
        "pg_stops.py",
        "        tx.later.append(partial(progress.keep, numbers, start + PART, hold, tuple(answers)))\n",
        "",
        (LOST + "test_a_bulk_stop_in_parts_places_one_hold_and_accepts_each_once",),
    ),
)


def run_tests(place, server, mutant):
    """Run tests in a process that imports a copy of the library with the mistake."""
    shutil.copytree(SOURCE, place / "stoppable", ignore=shutil.ignore_patterns("__pycache__", "ui"))
    file = place / "stoppable/stores/postgres" / mutant.file
    text = file.read_text()
    assert text.count(mutant.snippet) == 1, f"{mutant.file} changed: bring {mutant.name!r} up to date"
    file.write_text(text.replace(mutant.snippet, mutant.replacement))
    # Only the plugins that the tests need: the others are half of the time.
    plugins = [f"-p{plugin}" for plugin in ("no:cacheprovider", "pytest_asyncio.plugin", "pytest_timeout")]
    variables = {"PYTHONPATH": str(place), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "STOPPABLE_TEST_POSTGRES": server.url}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", *plugins, "--timeout=60", *mutant.caught_by],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_the_mutant_is_seen(mutant, server, tmp_path):
    done = run_tests(tmp_path, server, mutant)
    report = done.stdout + done.stderr
    blind = [test for test in mutant.caught_by if f"\nFAILED {test}" not in report]
    assert (done.returncode, blind) == (1, []), f"{mutant.name}:\n{report}"
