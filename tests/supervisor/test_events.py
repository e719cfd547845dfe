"""What a run tells is kept in order, and a slow reader holds up nobody."""

import asyncio
import threading

from tests.waiting import until

import stoppable
from stoppable import EventType, Supervisor

from .kept_agents import steps
from .late_store import Late


async def test_events_are_dense_and_can_be_resumed_anywhere(store):
    async def agent():
        stoppable.emit("thinking", about="it")
        async with stoppable.boundary("llm", "model"):
            pass
        stoppable.set_partial("so far")
        return 1

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(agent)
        events = [event async for event in handle.events()]
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [event.type for event in events] == [
            "status", "progress", "entered", "left", "partial", "status", "done",
        ]  # fmt: skip
        assert events[1].data == {"name": "thinking", "data": {"about": "it"}}
        assert events[2].data == events[3].data == {"kind": "llm", "name": "model", "boundary": 1}
        assert events[4].data == {"value": "so far"}
        for after in range(len(events) + 3):
            assert [event async for event in supervisor.events(handle.id, after)] == events[after:]


async def test_a_live_reader_sees_each_event_once_while_it_happens(store):
    async with Supervisor(store) as supervisor:
        go = asyncio.Event()
        handle = await supervisor.start(steps, 3, go)
        seen = []
        async for event in handle.events():
            seen.append(event.seq)
            go.set()
        assert seen == list(range(1, len(seen) + 1))
        assert (await handle.record()).last_event == len(seen)


async def test_a_reader_that_does_not_read_holds_up_nobody(store):
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(steps, 200)
        reader = handle.events()
        assert (await anext(reader)).type is EventType.STATUS
        assert await handle.result() == 200
        rest = [event async for event in reader]
        assert rest[-1].type is EventType.DONE


async def test_events_that_were_dropped_are_missed_in_the_log_while_the_run_goes_on(monkeypatch):
    monkeypatch.setattr("stoppable.supervisor.log_writer._DRAFTS_KEPT", 5)
    store, go = Late(), asyncio.Event()

    async def agent():
        stoppable.emit("held up")
        await until(lambda: store.unanswered)
        for number in range(8):
            stoppable.emit("step", number=number)
        store.release()
        await go.wait()
        stoppable.emit("after")

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(agent)
        told = []
        async for event in handle.events():
            if event.type is EventType.LOG:
                told.append(event.data["message"])
                go.set()
            elif event.type is EventType.PROGRESS:
                told.append(event.data["data"].get("number", event.data["name"]))
        kept = len(told) - 3  # four, or three if the status of the run was still among what was waiting
        dropped = f"{8 - kept} events were dropped while the store did not answer"
        assert kept in {3, 4}
        assert told == ["held up", *range(kept), dropped, "after"]


async def test_values_that_cannot_be_kept_are_said_so_and_the_run_is_unharmed(store):
    async def agent():
        stoppable.set_partial("x" * 50_000_000)
        stoppable.emit("odd", thing=object())
        return object()

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(agent)
        assert type(await handle.result()) is object
        record = await handle.record()
        assert set(record.outcome.omitted) == {"result", "partial"}
        assert "over the limit" in record.outcome.omitted["partial"]
        assert "no JSON form" in record.outcome.omitted["result"]
        events = [event async for event in handle.events()]
    assert [event.data.get("omitted", "")[:10] for event in events[1:3]] == ["50,000,000", "a value of"]


async def test_a_lost_run_is_logged_with_what_is_left_and_that_it_has_died_is_an_event(store, caplog):
    go = threading.Event()
    policy = stoppable.Policy(grace=0, interrupt=0, cancel=0, kill=0.01)
    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(go.wait, 30, policy=policy)
        await until(lambda: handle.status == "running")
        assert (await supervisor.stop(handle.id, wait=30)).status == "lost"
        assert f"run {handle.id} (wait) is lost, still alive: threading.py:" in caplog.text
        go.set()
        while (last := store.read(handle.id).result()[-1]).type != "late":
            await asyncio.sleep(0.001)
        assert last.data == {"status": "stopped"}
        assert (await supervisor.get(handle.id)).status == "lost"


async def test_the_end_of_a_boundary_has_the_number_of_its_beginning(store):
    """Two calls of one name at the same time are two bars of a time line."""

    async def ask(entered, answer):
        async with stoppable.boundary("llm", "ask"):
            entered.set()
            await answer.wait()

    async def agent():
        entered, answers = asyncio.Event(), [asyncio.Event() for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(entered, answers[0]))
            await entered.wait()
            answers[1].set()
            await group.create_task(ask(entered, answers[1]))
            answers[0].set()

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(agent)
        told = [(event.type, event.data["boundary"]) async for event in handle.events() if "boundary" in event.data]
    assert told == [("entered", 1), ("entered", 2), ("left", 2), ("left", 1)]
