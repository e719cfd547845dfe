"""A start that cannot begin has an end, as every run has."""

import threading

import pytest
from tests.waiting import until, wait_until

from stoppable import Supervisor, sync


@pytest.fixture
def no_threads(monkeypatch):
    def refuse(thread):
        if thread.name.startswith("stoppable blocks"):
            raise RuntimeError("can't start new thread")
        start(thread)

    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", refuse)


def blocks():
    sync.sleep(3600)


@pytest.mark.usefixtures("no_threads")
async def test_a_run_whose_thread_cannot_be_started_is_stopped_and_says_why(store):
    async with Supervisor(store) as supervisor:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await supervisor.start(blocks, run_id="x")
        await until(lambda: store.get("x").result().over)
        record = await supervisor.get("x")
        assert (record.status, record.outcome.reason.kind) == ("stopped", "external")
        assert record.outcome.reason.message == "its thread was not started: can't start new thread"


@pytest.mark.usefixtures("no_threads")
def test_so_is_one_that_blocking_code_starts(store):
    with sync.Supervisor(store) as supervisor:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            supervisor.start(blocks, run_id="x")
        wait_until(lambda: supervisor.get("x").over)
        assert supervisor.get("x").outcome.reason.message == "its thread was not started: can't start new thread"
