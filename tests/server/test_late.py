"""What is told of a run after its worker died, or after a thread that was given up has ended by itself."""

import threading

import stoppable
from stoppable import sync
from stoppable.cli import formatting
from stoppable.client import Client
from stoppable.records import EventType, RunSummary

from ..served import serving_process
from ..waiting import wait_until
from .serving import client_of, event, events, over, served, started

LET_GO = threading.Event()


def deaf():
    with stoppable.boundary("tool", "deaf"):
        LET_GO.wait(60)


async def test_the_late_end_of_a_lost_run_is_in_its_record_its_receipt_lists_and_the_replay(tmp_path):
    LET_GO.clear()
    with served([deaf], store=f"sqlite:///{tmp_path}/runs.db") as service:
        async with client_of(service) as client:
            run_id = await started(client, "deaf", policy={"kill": 0.2})
            await event(client, run_id, "entered")
            await client.post(f"/runs/{run_id}/stop", json={"mode": "kill"}, params={"wait": 30})
            record = await over(client, run_id)
            assert (record["status"], record["endedLate"]) == ("lost", None), record
            LET_GO.set()
            while (record := (await client.get(f"/runs/{run_id}")).json())["endedLate"] is None:
                pass  # the store is told from another thread
            receipt = (await client.get(f"/runs/{run_id}/receipt")).json()
            (listed,) = (await client.get("/runs")).json()["runs"]
            assert record["endedLate"] == receipt["endedLate"] == listed["endedLate"] > record["endedAt"]
            assert record["status"] == "lost", "a late report changes nothing (G2)"
            told = [found["event"] async for found in events(client, run_id)]
            assert told[-2:] == ["done", "late"]
            with Client(service.url) as typed:
                found = typed.get(run_id)
                assert "ended later" in formatting.render_status(found.status, RunSummary.of(found).ended_late).plain


async def test_a_record_and_its_receipt_tell_the_same_times(tmp_path):
    async def sleeper():
        await stoppable.sleep(60)

    with served({"sleeper": sleeper}, store=f"sqlite:///{tmp_path}/runs.db") as service:
        async with client_of(service) as client:
            for _ in range(3):
                run_id = await started(client, "sleeper")
                await client.post(f"/runs/{run_id}/stop", params={"wait": 30})
                record = (await client.get(f"/runs/{run_id}")).json()
                receipt = (await client.get(f"/runs/{run_id}/receipt")).json()
                assert record["receipt"] == receipt
                assert (record["stopRequestedAt"], record["endedAt"]) == (receipt["requestedAt"], receipt["endedAt"])


def test_after_a_kill_of_the_server_the_outcome_has_the_partial_that_the_log_has(tmp_path):
    store = f"sqlite:///{tmp_path}/runs.db"
    with serving_process("--store", store) as (server, url):
        with Client(url) as client:
            run_id = client.start("waiting").id
            for found in client.events(run_id):
                if found.type is EventType.PARTIAL:
                    break
        server.process.kill()
        server.process.wait(30)
    with sync.Supervisor(store) as supervisor:
        wait_until(lambda: supervisor.get(run_id).over, within=30)
        outcome = supervisor.get(run_id).outcome
    assert (outcome.status, outcome.partial) == ("failed", "so far")


def test_what_a_reader_has_seen_outlives_a_kill_of_the_server_and_resuming_skips_nothing(tmp_path):
    """Tokens are collected for a moment before they are written, and no reader sees one before it is."""
    store = f"sqlite:///{tmp_path}/runs.db"
    seen = []
    with serving_process("--store", store) as (server, url):
        with Client(url) as client:
            run_id = client.start("talker", {"count": 1_000_000, "pause": 0.001}).id
            for found in client.events(run_id):
                seen.append(found)
                if found.type is EventType.PROGRESS and found.data["data"]["number"] == 50:
                    server.process.kill()
                    server.process.wait(30)
                    break
    with serving_process("--store", store) as (_, url), Client(url) as client:
        wait_until(lambda: client.get(run_id).over, within=30)
        kept = list(client.events(run_id))
        resumed = list(client.events(run_id, after=seen[-1].seq))
    assert kept[: len(seen)] == seen
    assert kept[len(seen) :] == resumed
    assert [found.seq for found in kept] == list(range(1, len(kept) + 1))
    assert [found.type for found in kept[-2:]] == [EventType.STATUS, EventType.DONE]
    told = [found.data["data"]["number"] for found in kept if found.type is EventType.PROGRESS]
    assert told == list(range(len(told)))
