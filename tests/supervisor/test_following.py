"""The events of a whole tree in one stream, and a function that is called with them."""

import asyncio
import queue
import threading

import pytest

import stoppable
from stoppable import Supervisor, sync
from stoppable.errors import RunNotFound
from stoppable.records import EventType

from .kept_agents import forever, steps


async def child(name):
    stoppable.emit("working", name=name)


async def parent():
    stoppable.emit("begun")
    await stoppable.call(child, "one")
    await stoppable.call(child, "two")
    return "done"


def names(events):
    return [event.data["name"] for event in events if event.type is EventType.PROGRESS]


async def test_the_events_of_a_tree_come_in_one_stream_that_ends_with_its_root(store):
    async with Supervisor(store) as supervisor:
        other = await supervisor.start(steps, 1)
        handle = await supervisor.start(parent)
        found = [event async for event in supervisor.events(handle.id, tree=True)]
        assert names(found) == ["begun", "working", "working"]
        assert len({event.run_id for event in found}) == 3
        assert other.id not in {event.run_id for event in found}
        assert [event.place for event in found] == sorted({event.place for event in found})
        assert [event.run_id for event in found if event.type is EventType.DONE][-1] == handle.id
        assert found[-1].type is EventType.DONE

        for number, event in enumerate(found):  # whoever was cut off goes on
            rest = [event async for event in supervisor.events(handle.id, event.place, tree=True)]
            assert rest == found[number + 1 :]


async def test_the_events_of_a_tree_come_as_they_happen(store):
    go = asyncio.Event()

    async def waiting():
        stoppable.emit("begun")
        await go.wait()
        await stoppable.call(child, "late")

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(waiting)
        async with asyncio.timeout(30):
            seen = []
            async for event in supervisor.events(handle.id, tree=True):
                seen.append(event)
                if names([event]) == ["begun"]:
                    go.set()
        assert names(seen) == ["begun", "working"]


async def test_the_tree_of_an_unknown_run_is_not_found(store):
    async with Supervisor(store) as supervisor:
        with pytest.raises(RunNotFound):
            await anext(supervisor.events("nobody", tree=True))


def test_blocking_code_reads_a_tree_too(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(parent)
        found = list(supervisor.events(handle.id, tree=True))
        assert names(found) == ["begun", "working", "working"]
        assert list(supervisor.events(handle.id, found[-1].place, tree=True)) == []
        handle.outcome()


# A listener


async def test_a_listener_is_called_with_every_event_from_now_on_in_order(store):
    heard = queue.Queue()
    async with Supervisor(store) as supervisor:
        await (await supervisor.start(steps, 1)).outcome()
        with supervisor.listen(heard.put):
            handle = await supervisor.start(parent)
            expected = [event async for event in supervisor.events(handle.id, tree=True)]
            told = [await asyncio.to_thread(heard.get, timeout=30) for _ in expected]
            assert told == expected
        await (await supervisor.start(steps, 1)).outcome()
        assert heard.empty()


async def test_a_listener_may_be_kept_to_a_tree_and_to_some_types(store):
    heard = queue.Queue()
    async with Supervisor(store) as supervisor:
        with supervisor.listen(heard.put, "mine", types=[EventType.DONE]):
            await (await supervisor.start(steps, 1)).outcome()
            await (await supervisor.start(parent, run_id="mine")).outcome()
            told = [await asyncio.to_thread(heard.get, timeout=30) for _ in range(3)]
        assert [event.type for event in told] == [EventType.DONE] * 3
        assert told[-1].run_id == "mine"
        assert heard.empty()


async def test_a_listener_that_raises_hears_the_next_event_and_may_close_itself(store, caplog):
    heard = queue.Queue()

    def call(event):
        heard.put(event)
        if event.type is EventType.DONE:
            listener.close()
        raise ValueError("no")

    async with Supervisor(store) as supervisor:
        listener = supervisor.listen(call)
        await (await supervisor.start(steps, 1)).outcome()
        while (await asyncio.to_thread(heard.get, timeout=30)).type is not EventType.DONE:
            pass
    assert "a listener raised an error" in caplog.text


async def test_a_listener_ends_with_its_supervisor(store):
    async with Supervisor(store) as supervisor:
        listener = supervisor.listen(lambda event: None)
        assert listener.is_open
    assert not listener.is_open
    assert "stoppable-listener" not in {thread.name for thread in threading.enumerate()}


# The same supervisor for blocking code, and a start in two steps


async def test_blocking_code_on_another_thread_uses_the_same_supervisor(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever, key="k")
        view = supervisor.blocking

        def blocking():
            assert [record.id for record in view.find("k")] == [handle.id]
            made = view.start(parent)
            assert made.result() == "done"
            return view.stop(handle.id, wait=30)

        receipt = await asyncio.to_thread(blocking)
        assert (receipt.final, (await handle.outcome()).status) == (True, "stopped")
        with pytest.raises(stoppable.InvalidArgument, match="view"):
            view.close()
        with pytest.raises(stoppable.InvalidArgument, match="view"), view:
            pass
        assert supervisor.is_open


async def test_a_start_in_two_steps_can_be_stopped_in_between_and_begins_where_it_is_launched(store):
    async with Supervisor(store) as supervisor:
        prepared = await supervisor.prepare(steps, 2, owner="me")
        assert (prepared.is_new, (await supervisor.get(prepared.id)).status) == (True, "pending")
        assert await prepared.launch().result() == 2

        prepared = await supervisor.prepare(steps, 2)
        await supervisor.stop(prepared.id)
        assert (await prepared.launch().outcome()).status == "stopped"

        prepared = await supervisor.prepare(steps, 2)
        prepared.abandon()
        assert (await supervisor.handle(prepared.id).outcome()).status == "stopped"

        first = await supervisor.prepare(steps, 1, run_id="mine")
        again = await supervisor.prepare(steps, 1, run_id="mine")
        assert (first.is_new, again.is_new) == (True, False)
        assert await first.launch().result() == await again.launch().result() == 1


async def test_a_supervisor_tells_whether_it_takes_runs(store):
    async with Supervisor(store) as supervisor:
        assert (supervisor.is_current, supervisor.is_draining) == (True, False)
        handle = await supervisor.start(forever)
        assert supervisor.shut_down("immediate") > 0
        assert supervisor.is_draining
        assert (await handle.outcome()).status == "stopped"
        with pytest.raises(stoppable.StoppableError, match="shutting down"):
            await supervisor.prepare(forever)


async def test_a_supervisor_has_the_runs_of_its_process(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(forever)
        assert [run.id for run in supervisor.runs] == [handle.id]
        await supervisor.stop(handle.id, "immediate")
        await handle.outcome()  # until its end is kept
        assert supervisor.runs == ()
