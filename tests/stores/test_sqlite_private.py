"""Only the user of a store can read its files, and nobody else decides what is made or removed beside it."""

import os
import stat

import pytest

from stoppable.errors import StoreError
from stoppable.stores.base import WorkerInfo

from .sqlite_tools import started


@pytest.fixture
def _everybody_may_read():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("_everybody_may_read")
def test_its_files_are_for_its_user_alone_whatever_the_umask_says(path, open_store):
    store = open_store()
    started(store)
    workers = path.with_name(path.name + "-workers")
    assert mode(workers) == 0o700
    assert {mode(found) for found in path.parent.glob("runs.db*") if found.is_file()} == {0o600}
    assert [mode(found) for found in workers.glob("*.lock")] == [0o600]


@pytest.mark.usefixtures("_everybody_may_read")
def test_a_file_that_was_there_keeps_its_permissions(path, open_store):
    path.touch(0o640)
    open_store()
    assert mode(path) == 0o640


@pytest.mark.parametrize("plant", ["a link", "a file"])
def test_what_somebody_else_put_in_the_place_of_its_directory_is_refused(plant, path, open_store, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = path.with_name(path.name + "-workers")
    if plant == "a link":
        place.symlink_to(elsewhere)
    else:
        place.touch()
    store = open_store()
    with pytest.raises(StoreError, match="is a link or a file"):
        store.open_worker(WorkerInfo(id="w"), 30).result(10)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(path, open_store):
    place = path.with_name(path.name + "-workers")
    place.mkdir()
    os.chown(place, 65_534, 65_534)
    store = open_store()
    with pytest.raises(StoreError, match="belongs to user 65534"):
        store.open_worker(WorkerInfo(id="w"), 30).result(10)


def test_the_sweep_removes_the_files_of_dead_workers_and_no_others(path, open_store, tmp_path):
    store = open_store()
    store.open_worker(WorkerInfo(id="other"), 30).result(10)
    place = path.with_name(path.name + "-workers")
    target = tmp_path / "precious"
    target.write_text("precious")
    (place / "mine.lock").write_text("not of stoppable")
    (place / "link.lock").symlink_to(target)
    store.open_worker(WorkerInfo(id="dead"), 30).result(10)
    store.close_worker("dead").result(10)
    (place / "dead.lock").touch()  # as if it had been killed in between
    store.reap().result(10)
    store.open_worker(WorkerInfo(id="last"), 30).result(10)
    store.close_worker("last").result(10)
    store.reap().result(10)
    store.holds().result(10)  # what waits for the end of the transaction has been done
    assert {found.name for found in place.glob("*.lock")} == {"mine.lock", "link.lock", "other.lock"}
    assert target.read_text() == "precious"
