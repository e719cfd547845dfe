"""The contract sees deliberate mistakes in the Postgres store: each makes one of the tests named here fail.

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
SECONDS = 100


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    file: str
    snippet: str
    replacement: str
    caught_by: tuple[str, ...]


MUTANTS = (
    Mutant(
        "no compare-and-set",
        "runs.py",
        "    if record.over or record.epoch != epoch:\n",
        "    if False:\n",
        (FORCED + "test_of_two_ends_the_second_sees_the_first",),
    ),
    Mutant(
        "no row is locked before an end",
        "runs.py",
        "is_truncated FROM runs WHERE id = %s FOR NO KEY UPDATE OF runs",
        "is_truncated FROM runs WHERE id = %s",
        (FORCED + "test_of_two_ends_the_second_sees_the_first",),
    ),
    Mutant(
        "no re-read after a reconnect",
        "listener.py",
        "        self._tell(new)\n",
        "",
        ("tests/fleet/test_wakeups.py::test_a_stop_that_nobody_heard_is_seen_after_the_reconnect",),
    ),
    Mutant(
        "blind spawn",
        "runs.py",
        '_PARENT = f"{_BY_ID} FOR SHARE OF runs"',
        "_PARENT = _BY_ID",
        (TREE,),
    ),
    Mutant(
        "snapshot tree",
        "stops.py",
        "again, named = tx.ask(sql, values), ",
        "again, named = asked, ",
        (TREE,),
    ),
    Mutant(
        "late lease",
        "leases.py",
        "machine.boot, tx.now() + ttl, ttl)",
        "machine.boot, 1e18, ttl)",
        (CONTRACT + "test_a_worker_that_dies_before_its_first_heartbeat_is_seen",),
    ),
    Mutant(
        "no lock of a name",
        "transaction.py",
        '        self._lock(f"{kind} {name}", "_shared" if shared else "")\n',
        "        pass\n",
        (
            FORCED + "test_a_start_sees_the_stop_that_is_being_written",
            FORCED + "test_a_start_sees_the_hold_that_is_being_placed",
        ),
    ),
    Mutant(
        "numbers are seen out of order",
        "transaction.py",
        '            self._lock("order", "")\n',
        "            pass\n",
        ("tests/fleet/test_order.py::test_a_reader_that_reads_on_sees_an_entry_that_is_committed_later",),
    ),
    Mutant(
        "a start does not hold its worker",
        "runs.py",
        "state = 'open' FOR KEY SHARE",
        "state = 'open'",
        (FORCED + "test_a_reaper_sees_the_start_that_is_being_written",),
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
        [sys.executable, "-m", "pytest", "-x", "-q", *plugins, "--timeout=60", *mutant.caught_by],
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
    assert done.returncode == 1, f"nobody saw {mutant.name}:\n{report}"
    assert "\nFAILED " in report, report
