"""Each cancel of the official client is a stop, and after the end that it is told nothing goes on."""

import asyncio
import contextlib
import threading

import pytest
from langgraph_sdk import get_client

from ..openai_api.agents import GATES
from .conftest import (
    ALONE,
    DEADLINE,
    HASTY,
    Reader,
    begin,
    cancel_many,
    chat,
    client_of,
    connected,
    ended,
    events,
    new_thread,
    record,
    refused,
    runs,
    said,
    serving,
    text_of,
    wait_until,
)

NOTES = "notes on tides: one two"
CANCELLED = ("stopped", "user", "langgraph_api")


def end_of(service, run_id):
    """Return how a run ended, and who has stopped it."""
    run = record(service, run_id)
    reason = run.outcome.reason
    return (run.status, reason.kind, reason.source)


def at_work(client, marks, work, **options):
    """Start the agent that works in four ways, and return the ids once it does."""
    thread, run_id = begin(client, "research", work, **options)
    wait_until(marks.have_begun)
    return thread, run_id


def test_a_cancel_ends_everything_keeps_what_was_said_and_the_next_turn_works(marks, work):
    with connected() as (service, client):
        thread, run_id = at_work(client, marks, work)
        assert client.threads.get(thread)["status"] == "busy"
        client.runs.cancel(thread, run_id, wait=True)
        assert marks.still_there() == []
        run = client.runs.get(thread, run_id)
        assert run["status"] == "interrupted"
        assert run["metadata"]["stoppable"]["alive"] == []
        assert end_of(service, run_id) == CANCELLED
        assert record(service, run_id).stop.mode == "graceful"
        thread_now = client.threads.get(thread)
        assert thread_now["status"] == "idle", "nobody is asked for anything"
        answer = thread_now["values"]["messages"][-1]
        assert (answer["type"], answer["content"]) == ("ai", NOTES)
        assert answer["response_metadata"]["stoppable"]["status"] == "stopped"
        assert client.threads.get_state(thread)["next"] == []
        after = client.runs.wait(thread, "recalling", input=said("and now"))
        assert after["messages"][-1]["content"] == "3: and now"
        assert GATES.calls[-1][1:] == [NOTES, "and now"]


def test_a_cancel_without_waiting_is_a_stop_that_was_taken(marks, work):
    with connected() as (service, client):
        thread, run_id = at_work(client, marks, work)
        client.runs.cancel(thread, run_id)
        assert record(service, run_id).stop is not None
        assert ended(client, thread, run_id)["status"] == "interrupted"
        assert marks.still_there() == []


def test_a_rollback_takes_the_turn_out_of_its_thread(marks, work):
    with connected() as (service, client):
        thread = new_thread(client)
        client.runs.wait(thread, "echo", input=said("before"))
        before = client.threads.get_state(thread)
        _, run_id = at_work(client, marks, work, thread=thread)
        client.runs.cancel(thread, run_id, wait=True, action="rollback")
        assert marks.still_there() == []
        with refused(404):
            client.runs.get(thread, run_id)
        assert client.threads.get_state(thread) == before
        assert [run["run_id"] for run in client.runs.list(thread)] == [before["metadata"]["run_id"]]
        assert end_of(service, run_id) == CANCELLED, "it stays in the store, with what it has said"
        assert record(service, run_id).outcome.partial == NOTES
        client.runs.cancel(thread, run_id, wait=True, action="rollback")  # the same again is no error
        after = client.runs.wait(thread, "recalling", input=said("after"))
        assert after["messages"][-1]["content"] == "3: after"


def test_the_stream_of_a_run_that_is_cancelled_ends_with_what_was_said(marks, work):
    with connected() as (_, client):
        thread, made = new_thread(client), threading.Event()
        ids = {}

        def note(run):
            ids.update(run)
            made.set()

        modes = ["values", "messages-tuple"]
        reader = Reader(client.runs.stream(thread, "research", input=work, stream_mode=modes, on_run_created=note))
        assert made.wait(DEADLINE)
        wait_until(marks.have_begun)
        client.runs.cancel(thread, ids["run_id"], wait=True)
        assert marks.still_there() == []
        parts = reader.finish()
        assert ids["thread_id"] == thread
        assert "error" not in events(parts)
        assert text_of(parts) == NOTES
        assert parts[-1].event == "values"
        assert parts[-1].data["messages"][-1]["content"] == NOTES


@pytest.mark.parametrize("leaving", ["stream", "wait", "join_stream"])
async def test_leaving_stops_a_run_whose_client_asks_for_that(marks, work, leaving):
    with serving() as service:
        async with get_client(url=f"{service.url}/lg", api_key="", headers=ALONE) as client:
            thread = (await client.threads.create())["thread_id"]
            request = asyncio.create_task(_leave(client, thread, work, leaving))
            assert await asyncio.to_thread(wait_until, marks.have_begun)
            request.cancel()
            await asyncio.wait({request})
        run = await asyncio.to_thread(wait_until, lambda: (run := runs(service)[0]).over and run)
        assert marks.still_there() == []
        assert (run.status, run.reason.kind, run.reason.source) == ("stopped", "disconnect", "langgraph_api")


async def _leave(client, thread, work, leaving):
    if leaving == "wait":
        await client.runs.wait(thread, "research", input=work, on_disconnect="cancel")
        return
    if leaving == "stream":
        stream = client.runs.stream(thread, "research", input=work, on_disconnect="cancel")
    else:
        run = await client.runs.create(thread, "research", input=work)
        stream = client.runs.join_stream(thread, run["run_id"], cancel_on_disconnect=True)
    async with contextlib.aclosing(stream):
        async for _ in stream:
            pass


@pytest.mark.parametrize("leaving", ["stream", "join_stream"])
def test_leaving_stops_nothing_otherwise(leaving):
    with connected() as (service, client):
        thread = new_thread(client)
        if leaving == "stream":
            stream = client.runs.stream(thread, "waits", input=said("go"))
        else:
            stream = client.runs.join_stream(*begin(client, "waits", said("go"), thread))
        with contextlib.closing(stream):
            next(stream)
            wait_until(GATES.reached.is_set)
        wait_until(lambda: len(service.app.state.backend.streams) == 0)
        GATES.release.set()
        assert ended(client, thread, runs(service)[0].id)["status"] == "success"


# Another run of a thread that is busy


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_new_run_may_stop_the_one_at_work_and_begins_when_that_has_ended(marks, work, strategy):
    with connected() as (service, client):
        thread, first = at_work(client, marks, work)
        _, second = begin(client, "recalling", said("instead"), thread, multitask_strategy=strategy)
        values = client.runs.join(thread, second)
        assert marks.still_there() == []
        assert end_of(service, first) == CANCELLED
        assert record(service, second).started_at >= record(service, first).ended_at
        if strategy == "interrupt":
            assert client.runs.get(thread, first)["status"] == "interrupted"
            assert [one["content"] for one in values["messages"][1:]] == [NOTES, "instead", "3: instead"]
        else:
            assert [one["content"] for one in values["messages"]] == ["instead", "1: instead"]
            assert len(client.runs.list(thread)) == 1
        assert chat(client, thread) == [(one["type"], one["content"]) for one in values["messages"]]


def test_a_new_run_is_refused_beside_one_at_work_if_it_asks_for_that():
    with connected() as (service, client):
        thread, first = begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        with refused(409):
            begin(client, "echo", said("no"), thread, multitask_strategy="reject")
        GATES.release.set()
        assert ended(client, thread, first)["status"] == "success"
        assert len(runs(service)) == 1


def test_new_runs_wait_in_order_and_one_that_is_cancelled_there_never_begins():
    with connected() as (service, client):
        thread, first = begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        waiting = [begin(client, "recalling", said(word), thread)[1] for word in ("one", "two", "three")]
        assert [client.runs.get(thread, run)["status"] for run in waiting] == ["pending"] * 3
        client.runs.cancel(thread, waiting[1], wait=True)
        assert client.runs.get(thread, waiting[1])["status"] == "interrupted"
        # Its new status is stored a little later.
        wait_until(lambda: client.runs.get(thread, first)["status"] != "pending")
        assert client.runs.get(thread, first)["status"] == "running", "only that one was meant"
        GATES.release.set()
        values = client.runs.join(thread, waiting[2])
        heard = [one["content"] for one in values["messages"]]
        assert heard == ["go", "first second third", "one", "3: one", "three", "5: three"]
        assert [call[-1] for call in GATES.calls[1:]] == ["one", "three"]
        assert record(service, waiting[1]).started_at is None


def test_a_server_that_shuts_down_ends_what_waits():
    with connected() as (service, client):
        thread, _ = begin(client, "waits", said("go"))
        wait_until(GATES.reached.is_set)
        begin(client, "echo", said("later"), thread)
        service.stop()
        wait_until(lambda: service.supervisor.is_draining)


# The truth about the end


def test_a_thread_that_nothing_can_end_is_named_and_never_called_cancelled():
    with connected(HASTY) as (service, client):
        thread, run_id = begin(client, "hangs", said("go"))
        wait_until(GATES.reached.is_set)
        with refused(409, r"The stop is not confirmed: .*thread stoppable hangs"):
            client.runs.cancel(thread, run_id, wait=True)
        run = client.runs.get(thread, run_id)
        assert run["status"] == "error"
        [name] = run["metadata"]["stoppable"]["alive"]
        assert "hangs" in name
        assert record(service, run_id).status == "lost"
        assert client.threads.get(thread)["status"] == "error"
        assert client.runs.join(thread, run_id)["__error__"]["error"] == "StopNotConfirmed"
        parts = list(client.runs.join_stream(thread, run_id))
        assert (parts[-1].event, parts[-1].data["error"]) == ("error", "StopNotConfirmed")
        GATES.release.set()


def test_a_rollback_of_what_nothing_can_end_hides_nothing():
    with connected(HASTY) as (_, client):
        thread, run_id = begin(client, "hangs", said("go"))
        wait_until(GATES.reached.is_set)
        with refused(409, "not confirmed"):
            client.runs.cancel(thread, run_id, wait=True, action="rollback")
        assert client.runs.get(thread, run_id)["status"] == "error"
        GATES.release.set()


def test_an_agent_that_swallows_the_cancel_is_interrupted_once_it_has_ended():
    with connected() as (_, client):
        thread, run_id = begin(client, "stubborn", said("go"))
        wait_until(GATES.reached.is_set)
        GATES.reached.clear()
        cancel = threading.Thread(target=client.runs.cancel, args=(thread, run_id), kwargs={"wait": True})
        cancel.start()
        wait_until(GATES.reached.is_set)
        assert client.runs.get(thread, run_id)["status"] == "running"
        assert cancel.is_alive()
        GATES.release.set()
        cancel.join(DEADLINE)
        assert GATES.calls == ["swallowed"]
        assert client.runs.get(thread, run_id)["status"] == "interrupted"


def test_cancels_at_once_are_one_graceful_stop(marks, work):
    with connected() as (service, client):
        thread, run_id = at_work(client, marks, work)
        together, answers = threading.Barrier(4), []

        def cancel():
            with client_of(service) as own:
                together.wait(DEADLINE)
                answers.append(own.runs.cancel(thread, run_id, wait=True))

        threads = [threading.Thread(target=cancel) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(DEADLINE)
        assert answers == [None] * 4
        assert record(service, run_id).stop.mode == "graceful", "a repeated request is no harder stop"


def test_a_cancel_of_what_has_completed_changes_nothing():
    with connected() as (_, client):
        thread, run_id = begin(client, "echo", said("hello"))
        client.runs.join(thread, run_id)
        client.runs.cancel(thread, run_id, wait=True)
        client.runs.cancel(thread, run_id, action="rollback")
        assert client.runs.get(thread, run_id)["status"] == "success"
        assert chat(client, thread)[-1] == ("ai", "hello ")


def test_many_are_cancelled_by_their_ids_or_by_their_status():
    with connected() as (_, client):
        begun = [begin(client, "waits", said("go")) for _ in range(3)]
        wait_until(lambda: len(GATES.calls) == 3)
        wait_until(lambda: [client.runs.get(*one)["status"] for one in begun] == ["running"] * 3)  # as the store has it
        thread, pending = begin(client, "echo", said("later"), begun[0][0])
        cancel_many(client, status="pending")
        assert ended(client, thread, pending)["status"] == "interrupted"
        cancel_many(client, thread_id=begun[0][0], run_ids=[begun[0][1]])
        assert ended(client, *begun[0])["status"] == "interrupted"
        assert [client.runs.get(*one)["status"] for one in begun[1:]] == ["running"] * 2
        cancel_many(client, status="all")
        assert [ended(client, *one)["status"] for one in begun[1:]] == ["interrupted"] * 2


def test_a_stop_from_elsewhere_is_seen_in_the_stream():
    with connected() as (service, client):
        thread = new_thread(client)
        reader = Reader(client.runs.stream(thread, "waits", input=said("go")))
        wait_until(GATES.reached.is_set)
        service.supervisor.blocking.stop(runs(service)[0].id, reason="enough")
        parts = reader.finish()
        assert parts[-1].data["messages"][-1]["content"] == "first "
        assert client.runs.list(thread)[0]["metadata"]["stoppable"]["message"].startswith("Stopped: enough")
