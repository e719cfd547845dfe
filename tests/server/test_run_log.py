"""The log of a server: one line for the start, the stop and the end of a run, and none for those who look."""

import logging
import queue

import pytest

import stoppable
from stoppable.client import Client

from .serving import served


@stoppable.agent
async def sleeper():
    await stoppable.sleep(600)


@stoppable.agent
async def failing():
    raise ValueError("no such\nrun 3f2a completed")


class Lines(logging.Handler):
    """Keeps what is logged, for whoever waits for it."""

    def __init__(self):
        super().__init__()
        self._records = queue.Queue()

    def emit(self, record):
        self._records.put(record)

    def next(self):
        return self._records.get(timeout=30)

    def rest(self):
        return [self._records.get() for _ in range(self._records.qsize())]


@pytest.fixture
def lines(request):
    handler, logger = Lines(), logging.getLogger(request.param)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(before)
    logger.removeHandler(handler)


@pytest.mark.parametrize("lines", ["stoppable.runs"], indirect=True)
def test_a_run_that_is_stopped_has_three_lines(lines):
    with served([sleeper]) as service, Client(service.url) as client:
        run_id = client.start("sleeper", owner="ann").id
        assert lines.next().getMessage() == f"run {run_id} started: 'sleeper', owner 'ann'"
        client.stop(run_id, reason="enough\nrun 3f2a started", wait=30)
        stopping, stopped = lines.next(), lines.next()
    told = "'sleeper', owner 'ann', graceful stop by 'local': 'enough\\nrun 3f2a started'"
    assert stopping.getMessage() == f"run {run_id} stopping: {told}"
    assert stopped.getMessage().startswith(f"run {run_id} stopped: {told}, ")
    assert stopped.getMessage().endswith(" s")
    assert (stopped.runId, stopped.agent, stopped.owner, stopped.runStatus) == (run_id, "sleeper", "ann", "stopped")
    assert stopped.seconds >= 0
    assert not lines.rest()


@pytest.mark.parametrize("lines", ["stoppable.runs"], indirect=True)
def test_a_stop_without_a_reason_shows_none(lines):
    with served([sleeper]) as service, Client(service.url) as client:
        run_id = client.start("sleeper").id
        lines.next()
        client.stop(run_id, wait=30)
        assert lines.next().getMessage() == f"run {run_id} stopping: 'sleeper', graceful stop by 'local'"


@pytest.mark.parametrize("lines", ["stoppable.runs"], indirect=True)
def test_a_failure_is_a_warning_that_says_why_on_one_line(lines):
    with served([failing]) as service, Client(service.url) as client:
        run_id = client.start("failing").id
        assert lines.next().getMessage() == f"run {run_id} started: 'failing'"
        failed = lines.next()
    assert failed.levelno == logging.WARNING
    assert failed.getMessage().startswith(f"run {run_id} failed: 'failing', ")
    assert failed.getMessage().endswith(r"ValueError: 'no such\nrun 3f2a completed'")


@pytest.mark.parametrize("lines", ["stoppable.access"], indirect=True)
def test_looking_again_and_again_leaves_no_lines(lines):
    with served([sleeper]) as service, Client(service.url) as client:
        run_id = client.start("sleeper").id
        for _ in range(3):
            client.get(run_id)
            client.list()
        client.stop(run_id, wait=30)
        assert list(client.events(run_id))
        with pytest.raises(stoppable.RunNotFound):
            client.get("unknown")
    told = [record.getMessage() for record in lines.rest()]
    assert [line.split()[1:4] for line in told] == [
        ["POST", "/runs", "201"],
        ["POST", f"/runs/{run_id}/stop", "200"],
        ["GET", "/runs/unknown", "404"],
    ]
