"""The file: how it is made and brought up to date, what is refused, and what a full disk does."""

import os
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from stoppable._extras import pip_install
from stoppable.errors import StoppableError, StoreError
from stoppable.records import Draft, EventType
from stoppable.stores.sqlite import SqliteStore, lite_connection
from stoppable.stores.sqlite.lite_connection import APPLICATION_ID, MIGRATIONS

from .sqlite_tools import Script, progress, started


def refused(path):
    """Open a store that cannot be opened, and return what it says."""
    store = SqliteStore(path)
    with pytest.raises(StoreError) as error:
        store.open()
    store.close()
    return str(error.value)


# What is refused


def test_a_directory_is_refused(tmp_path):
    assert "it is a directory" in refused(tmp_path)


def test_a_missing_directory_is_named(tmp_path):
    assert f"there is no directory {tmp_path / 'none'}" in refused(tmp_path / "none" / "runs.db")


def test_a_directory_that_may_not_be_written_is_refused():
    assert "cannot be opened or made" in refused(Path("/proc/self/runs.db"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused(path, open_store):
    open_store().close()
    path.chmod(0o400)
    assert "may not be written" in refused(path)


def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path):
    path.write_text("a diary, and a long one" * 100)
    assert "not a SQLite database" in refused(path)
    assert path.read_text() == "a diary, and a long one" * 100


def test_a_database_of_another_program_is_refused_and_left_as_it_is(path):
    with apsw.Connection(str(path)) as other:
        other.execute("CREATE TABLE diary (line TEXT)")
    other.close()
    before = path.read_bytes()
    assert "another program" in refused(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", range(5))
def test_a_file_that_another_process_makes_meanwhile_is_ours(path, open_store, monkeypatch, statement):
    """Replicas are started together, and each may be the first at any moment."""
    executed = []

    def make_it_first(_cursor, sql, _bindings):
        executed.append(sql)
        if len(executed) == statement + 1:
            lite_connection.open_writer(path, "full").close()
        return True

    def trace(opened):
        if not executed:
            opened.set_exec_trace(make_it_first)

    monkeypatch.setattr(apsw, "connection_hooks", [trace])
    lite_connection.open_writer(path, "full").close()
    assert len(executed) > statement
    open_store()


def test_a_file_of_a_newer_stoppable_is_refused(path, open_store):
    open_store().close()
    file = apsw.Connection(str(path))
    file.pragma("user_version", 99)
    file.close()
    assert "upgrade stoppable" in refused(path)


def test_a_damaged_file_is_said_to_be_damaged_and_the_store_goes_on(path, open_store):
    store = open_store()
    started(store)
    for step in range(50):
        store.append("a", 1, progress(text="x" * 1000, step=step))
    store.close()
    with closing(apsw.Connection(str(path))) as database:
        roots = [page for (page,) in database.execute("SELECT rootpage FROM sqlite_schema WHERE rootpage > 0")]
    with path.open("r+b") as file:  # all tables; the schema is whole, so that the file can be opened
        for page in roots:
            file.seek(4096 * (page - 1))
            file.write(os.urandom(4096))
    store = open_store()
    with pytest.raises(StoreError, match="damaged"):
        store.get("a").result(10)
    with pytest.raises(StoreError, match="damaged"):
        store.append("a", 1, progress()).result(10)
    with pytest.raises(StoreError, match="damaged"):
        store.read("a").result(10)


def test_without_apsw_only_open_fails(path):
    code = """
import sys
sys.modules["apsw"] = None
from stoppable.errors import StoreError
from stoppable.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
try:
    store.open()
except StoreError as error:
    print(error)
"""
    with Script(code, path, prelude="") as script:
        assert pip_install("sqlite") in script.hears()


def test_a_store_that_is_not_open_says_so(path):
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="not open"):
        store.get("a").result(1)
    with pytest.raises(StoreError, match="not open"):
        store.watch("a", print)


def test_values_that_no_file_can_hold_are_refused(store):
    started(store)
    for run_id, epoch, data in (("a\ud800", 1, {}), ("a", 2**70, {}), ("a", 1, {"x": object()}), ("a", 1, {(1, 2): 3})):
        with pytest.raises(StoppableError):
            store.append(run_id, epoch, [_draft(data)]).result(10)
    assert store.append("a", 1, progress(text="a\ud800\0", n=2**70)).result(10) == 2
    assert store.read("a", 1).result(10)[0].data == {"text": "a\ud800\0", "n": 2**70}


def _draft(data):
    return Draft(type=EventType.LOG, data=data)


# Migrations


def test_a_new_file_is_marked_as_ours(path, store):
    started(store)
    file = apsw.Connection(str(path))
    assert file.pragma("application_id") == APPLICATION_ID
    assert file.pragma("user_version") == len(MIGRATIONS)
    assert file.pragma("journal_mode") == "wal"
    file.close()


def test_an_older_file_is_brought_up_to_date_with_its_runs(path, open_store, monkeypatch):
    store = open_store()
    started(store)
    store.close()
    added = "ALTER TABLE runs ADD COLUMN colour TEXT; UPDATE runs SET colour = 'red';"
    monkeypatch.setattr(lite_connection, "MIGRATIONS", (*MIGRATIONS, added))
    store = open_store()
    assert store.get("a").result(10).name == "agent"
    store.close()
    file = apsw.Connection(str(path))
    assert file.pragma("user_version") == len(MIGRATIONS) + 1
    assert file.execute("SELECT colour FROM runs").get == "red"
    file.close()


def test_a_migration_that_fails_changes_nothing(path, open_store, monkeypatch):
    store = open_store()
    started(store)
    store.close()
    monkeypatch.setattr(lite_connection, "MIGRATIONS", (*MIGRATIONS, "DROP TABLE audit; SELECT nothing FROM nowhere"))
    refused(path)
    monkeypatch.undo()
    store = open_store()
    assert store.audit().result(10) == []
    assert store.get("a").result(10).name == "agent"


# A full disk


def test_a_full_file_loses_nothing_and_goes_on_when_there_is_room(open_store, path):
    store = open_store()
    started(store)
    file = store._engine._writes
    file.pragma("max_page_count", file.pragma("page_count") + 5)
    answered = _until_full(store)
    with pytest.raises(StoreError, match="make room"):
        store.append("a", 1, progress(text="x" * 20_000)).result(10)
    assert store.heartbeat("w", 30).result(10) == []  # what needs no room still works
    file.pragma("max_page_count", 1_000_000)
    assert store.append("a", 1, progress(text="x" * 20_000)).result(10) == answered + 1
    store.close()
    assert len(open_store().read("a").result(10)) == answered + 1


def _until_full(store):
    last = 1
    for _ in range(100):
        replies = [store.append("a", 1, progress(text="x" * 1000)) for _ in range(5)]
        for reply in replies:
            try:
                last = max(last, reply.result(10))
            except StoreError:
                assert len(store.read("a").result(10)) == last
                return last
    raise AssertionError("it was never full")


def test_a_disk_that_takes_no_more_loses_nothing_that_was_answered(path, store):
    code = """
import resource
store.open_worker(WorkerInfo(id="w"), 30).result(10)
store.register(RunRecord(id="a", name="agent", worker="w"), "r").result(10)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
last = 0
try:
    for _ in range(1000):
        last = store.append("a", 1, [Draft(type=EventType.LOG, data={"text": "x" * 5000})]).result(10)
except OSError as error:
    say(type(error).__name__, last)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say(store.append("a", 1, [Draft(type=EventType.LOG)]).result(10))
os._exit(0)
"""
    with Script(code, path) as script:
        kind, last = script.hears().split()
        assert kind == "StoreError"
        assert int(last) > 10
        assert int(script.hears()) == int(last) + 1
        assert script.ends() == 0
    assert [event.seq for event in store.read("a").result(10)] == list(range(1, int(last) + 2))
