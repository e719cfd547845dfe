"""A file with runs, and stores over it."""

import os

import pytest

from stoppable.stores.sql import worker_locks
from stoppable.stores.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def _locks():
    """Let go of the locks of workers that did not say goodbye: this process outlives them."""
    yield
    while worker_locks._descriptors:
        os.close(worker_locks._descriptors.popitem()[1])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def open_store(path):
    """Open one more store over the file, as another process would."""
    opened = []

    def open_(**settings):
        store = SqliteStore(settings.pop("path", path), **settings)
        store.open()
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store):
    return open_store()
