"""Whatever one agent returns or raises, the stops, the ends and the leases of all the others go on (G6)."""

import asyncio
import threading

import pytest
from tests.waiting import until

import stoppable
from stoppable import Supervisor
from stoppable.errors import RunFailed
from stoppable.supervisor import log_writer

from .kept_agents import raises


class Ending(Exception):
    """Its text cannot be had."""

    def __str__(self):
        raise SystemExit


class Slow:
    """Its JSON form comes when the test says so."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def model_dump(self, mode):
        self.asked.set()
        assert self.go.wait(30)
        return {"made": mode}


class SlowText(Exception):
    """Its text comes when the test says so."""

    def __init__(self):
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def __str__(self):
        self.asked.set()
        assert self.go.wait(30)
        return "made"


class Interrupting:
    """Has no JSON form, and says so like a user who wants to leave."""

    def model_dump(self, mode):
        raise KeyboardInterrupt


async def returns(value):
    return value


async def deaf():
    """Hear of no stop: the control thread has to cancel it."""
    await asyncio.sleep(3600)


async def stop_of_another_is_final(supervisor):
    handle = await supervisor.start(deaf)
    await supervisor.stop(handle.id, mode="immediate")
    return (await handle.outcome()).status == "stopped"


@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_an_error_whose_text_raises_what_ends_a_thread_ends_none(store, isolation):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(raises, Ending(), isolation=isolation)
        with pytest.raises(RunFailed):
            await handle.result()
        record = await until_over(supervisor, handle.id)
        assert await stop_of_another_is_final(supervisor)
    assert (record.outcome.error.type, "SystemExit" in record.outcome.error.message) == ("Ending", True)


async def test_a_result_whose_form_raises_what_ends_a_program_ends_nothing(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(returns, Interrupting())
        record = await until_over(supervisor, handle.id)
        assert await stop_of_another_is_final(supervisor)
    assert (record.status, record.outcome.result) == ("completed", None)
    assert "KeyboardInterrupt" in record.outcome.omitted["result"]


async def test_a_result_that_takes_its_time_to_be_written_down_holds_up_no_stop_and_is_kept(store):
    async with Supervisor(store) as supervisor:
        slow = Slow()
        handle = await supervisor.start(returns, slow)
        await until(slow.asked.is_set)
        assert await stop_of_another_is_final(supervisor)
        assert not (await supervisor.get(handle.id)).over
        slow.go.set()
        record = await until_over(supervisor, handle.id)
    assert (record.outcome.result, dict(record.outcome.omitted)) == ({"made": "json"}, {})


async def test_a_text_of_an_error_that_takes_its_time_holds_up_no_stop_and_is_kept(store):
    async with Supervisor(store) as supervisor:
        slow = SlowText()
        handle = await supervisor.start(raises, slow)
        await until(slow.asked.is_set)
        assert await stop_of_another_is_final(supervisor)
        slow.go.set()
        record = await until_over(supervisor, handle.id)
    assert record.outcome.error.message == "made"


async def test_a_run_has_its_end_though_what_it_gave_is_never_written_down(store, monkeypatch):
    monkeypatch.setattr(log_writer, "VALUE_SECONDS", 0.1)
    slow, text = Slow(), SlowText()
    async with Supervisor(store) as supervisor:
        returned = await until_over(supervisor, (await supervisor.start(returns, slow)).id)
        raised = await until_over(supervisor, (await supervisor.start(raises, text)).id)
    slow.go.set()
    text.go.set()
    assert (returned.status, returned.outcome.result) == ("completed", None)
    assert "within 0.1 seconds" in returned.outcome.omitted["result"]
    assert (raised.status, raised.outcome.error.type) == ("failed", "SlowText")
    assert "within 0.1 seconds" in raised.outcome.error.message


async def test_a_run_above_one_whose_result_takes_its_time_ends_after_it(store):
    slow = Slow()

    async def above():
        return await stoppable.call(returns, slow)

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(above)
        await until(slow.asked.is_set)
        await until(lambda: handle.run.status.terminal)
        assert not [record for record in await supervisor.tree(handle.id) if record.over]
        slow.go.set()
        await until_over(supervisor, handle.id)
        assert [record.over for record in await supervisor.tree(handle.id)] == [True, True]


async def until_over(supervisor, run_id):
    async with asyncio.timeout(30):
        while not (record := await supervisor.get(run_id)).over:
            await asyncio.sleep(0.005)
        return record
