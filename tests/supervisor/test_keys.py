"""A conversation is found and stopped by its key: before, while and after it runs, from any process."""

import asyncio
import subprocess
import sys

import pytest

import stoppable
from stoppable import Supervisor, sync
from stoppable.errors import InvalidArgument, RunStopped
from stoppable.records import Filter
from stoppable.stores.base import NEXT_TURN_SECONDS, TOMBSTONE_SECONDS
from stoppable.stores.memory import MemoryStore
from stoppable.supervisor import core
from stoppable.testing import StoreClock

from .kept_agents import forever, steps

KEY = "adk:app/user/session"


async def test_the_live_runs_of_a_key_are_found_newest_first(store):
    async with Supervisor(store) as supervisor:
        over = await supervisor.start(steps, 1, key=KEY)
        await over.outcome()
        handles = [await supervisor.start(forever, key=KEY, owner=owner) for owner in ("me", "you")]
        await supervisor.start(forever, key="another")
        assert [record.id for record in await supervisor.find(KEY)] == [handle.id for handle in reversed(handles)]
        assert [record.id for record in await supervisor.find(KEY, owner="me")] == [handles[0].id]
        assert await supervisor.find("nobody's") == []
        assert len((await supervisor.list(Filter(key=KEY))).runs) == 3


async def test_a_stop_by_key_stops_what_runs_and_waits_for_its_end(store):
    async with Supervisor(store) as supervisor:
        handles = [await supervisor.start(forever, key=KEY) for _ in range(2)]
        other = await supervisor.start(forever, key="another")
        stopped = await supervisor.stop(key=KEY, reason="enough", actor="ann", wait=30)
        assert {receipt.run_id for receipt in stopped} == {handle.id for handle in handles}
        assert {(receipt.status, receipt.final, receipt.reason.actor) for receipt in stopped} == {
            ("stopped", True, "ann")
        }
        assert (stopped.waits_until, other.status) == (None, "running")
        assert await supervisor.find(KEY) == []


async def test_a_child_is_stopped_with_the_conversation_that_started_it_and_has_no_receipt_of_its_own(store):
    started = asyncio.Event()

    async def parent():
        await stoppable.spawn(forever)
        started.set()
        await stoppable.sleep(3600)

    async with Supervisor(store) as supervisor:
        handle = await supervisor.start(parent, key=KEY, owner="me")
        await started.wait()
        [receipt] = await supervisor.stop(key=KEY, wait=30)
        assert receipt.run_id == handle.id
        assert {record.status for record in await supervisor.tree(handle.id)} == {"stopped"}
        roots = (await supervisor.list(Filter(owner="me", roots=True))).runs
        assert [record.id for record in roots] == [handle.id]


async def test_a_stop_by_key_that_comes_first_stops_the_next_start(store):
    async with Supervisor(store) as supervisor:
        early = await supervisor.stop(key=KEY, reason="not now")
        assert early == ()
        assert early.waits_until == pytest.approx(store.now() + TOMBSTONE_SECONDS, abs=30)
        handle = await supervisor.start(forever, key=KEY)
        outcome = await handle.outcome()
        assert (outcome.status, outcome.reason.message) == ("stopped", "not now")
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1


async def test_a_block_whose_key_was_stopped_first_does_not_begin(store):
    async with Supervisor(store) as supervisor:
        await supervisor.stop(key=KEY)
        with pytest.raises(RunStopped):
            async with supervisor.open_run("chat", key=KEY):
                pytest.fail("it began")
        async with supervisor.open_run("chat", key=KEY) as run:
            assert [record.id for record in await supervisor.find(KEY)] == [run.id]


async def test_a_stop_after_the_last_turn_does_not_meet_the_next_one(store):
    async with Supervisor(store) as supervisor:
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1
        assert (await supervisor.stop(key=KEY)).waits_until is None
        assert (await supervisor.stop_where(key=KEY, if_unknown=None)).waits_until is None
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1


async def test_a_stop_after_the_last_turn_that_is_meant_for_the_next_waits_for_a_moment_only():
    clock = StoreClock()
    async with Supervisor(MemoryStore(clock)) as supervisor:
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1
        assert (await supervisor.stop(key=KEY, if_unknown="wait")).waits_until == clock() + NEXT_TURN_SECONDS
        clock.advance(NEXT_TURN_SECONDS)
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1
        assert (await supervisor.stop(key=KEY, if_unknown="ignore")).waits_until is None
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1


async def test_a_stop_by_key_that_is_repeated_is_answered_again_and_meets_no_later_turn(store):
    async with Supervisor(store) as supervisor:
        await supervisor.start(forever, key=KEY)
        first = await supervisor.stop(key=KEY, wait=30, idempotency_key="one press")
        again = await supervisor.stop(key=KEY, idempotency_key="one press")
        assert [receipt.run_id for receipt in again] == [receipt.run_id for receipt in first]
        assert await (await supervisor.start(steps, 1, key=KEY)).result() == 1


async def test_a_key_is_a_text_and_a_stop_has_one_target(store):
    async with Supervisor(store) as supervisor:
        for wrong in (1, b"key", ["key"]):
            with pytest.raises(InvalidArgument, match="key"):
                await supervisor.start(forever, key=wrong)
            with pytest.raises(InvalidArgument, match="key"):
                await supervisor.stop(key=wrong)
            with pytest.raises(InvalidArgument, match="key"):
                await supervisor.find(wrong)
        with pytest.raises(InvalidArgument, match="not both"):
            await supervisor.stop("a", key="k")
        with pytest.raises(InvalidArgument, match="nothing to stop"):
            await supervisor.stop()
        with pytest.raises(InvalidArgument, match="idempotency_key"):
            await supervisor.stop("a", idempotency_key="k")


def test_blocking_code_has_keys_too(store):
    with sync.Supervisor(store) as supervisor:
        handle = supervisor.start(forever, key=KEY)
        assert [record.id for record in supervisor.find(KEY)] == [handle.id]
        [receipt] = supervisor.stop(key=KEY, wait=30)
        assert (receipt.run_id, receipt.final) == (handle.id, True)
        assert supervisor.stop(key="early").waits_until is not None
        with pytest.raises(RunStopped), supervisor.open_run("chat", key="early"):
            pytest.fail("it began")
        with pytest.raises(InvalidArgument, match="not both"):
            supervisor.stop("a", key="k")


# From another process

OTHER = """
import asyncio, sys
import stoppable

async def forever():
    await stoppable.sleep(3600)

async def main():
    async with stoppable.Supervisor(sys.argv[1]) as supervisor:
        print("up", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            what, key = line.split()
            if what == "start":
                handle = await supervisor.start(forever, key=key)
                print(handle.id, flush=True)
            else:
                await supervisor.stop(key=key, mode="immediate", if_unknown="wait")
                print("stopped", flush=True)

asyncio.run(main())
"""


class Replica:
    """Another process with the same store."""

    def __init__(self, url):
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        assert self.hears() == "up"
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def says(self, what):
        print(what, file=self._process.stdin, flush=True)

    def hears(self):
        return self._process.stdout.readline().strip()


async def test_a_stop_by_key_reaches_the_run_of_another_process_and_is_acknowledged_there(tmp_path):
    url = f"sqlite:///{tmp_path}/runs.db"
    with Replica(url) as replica:
        async with Supervisor(url) as supervisor:
            replica.says(f"start {KEY}")
            run_id = await asyncio.to_thread(replica.hears)
            assert [record.id for record in await supervisor.find(KEY)] == [run_id]
            [receipt] = await supervisor.stop(key=KEY, mode="immediate", wait=30)
            assert (receipt.run_id, receipt.final, receipt.status) == (run_id, True, "stopped")
            assert receipt.acknowledged_at is not None


async def test_a_bulk_stop_waits_until_the_gates_of_another_process_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "_ACKNOWLEDGE_SECONDS", 30.0)
    url = f"sqlite:///{tmp_path}/runs.db"
    with Replica(url) as replica:
        async with Supervisor(url) as supervisor:
            replica.says(f"start {KEY}")
            run_id = await asyncio.to_thread(replica.hears)
            here = await supervisor.start(forever)
            bulk = await supervisor.stop_where(all=True)
            assert {receipt.run_id for receipt in bulk} == {run_id, here.id}
            assert all(receipt.acknowledged_at is not None for receipt in bulk)


async def test_a_bulk_stop_waits_for_the_ends_of_the_runs_of_another_process(tmp_path):
    url = f"sqlite:///{tmp_path}/runs.db"
    with Replica(url) as replica:
        async with Supervisor(url) as supervisor:
            replica.says(f"start {KEY}")
            run_id = await asyncio.to_thread(replica.hears)
            here = await supervisor.start(forever)
            bulk = await supervisor.stop_where(all=True, wait=30)
            assert {(receipt.run_id, receipt.status) for receipt in bulk} == {
                (run_id, "stopped"),
                (here.id, "stopped"),
            }
            assert (await supervisor.stop_where(all=True, wait=30)) == ()


@pytest.mark.slow
async def test_in_200_rounds_of_a_stop_against_a_start_of_two_processes_none_is_lost(tmp_path):
    """Either nothing runs or it is stopped, in the first turn of a conversation and in later ones."""
    url = f"sqlite:///{tmp_path}/runs.db?synchronous=normal"
    born = 0
    with Replica(url) as one, Replica(url) as two:
        async with Supervisor(url) as supervisor:
            for round_ in range(200):
                key = f"{KEY}-{round_ % 20}"
                starter, stopper = (one, two) if round_ % 4 < 2 else (two, one)
                calls = [(starter, "start"), (stopper, "stop")][:: 1 if round_ % 2 else -1]
                heard = {}
                for replica, what in calls:
                    replica.says(f"{what} {key}")
                    if round_ < 2:  # once each way, for certain
                        heard[what] = await asyncio.to_thread(replica.hears)
                for replica, what in calls:
                    heard[what] = heard.get(what) or await asyncio.to_thread(replica.hears)
                run_id, said = heard["start"], heard["stop"]
                assert said == "stopped"
                async with asyncio.timeout(30):
                    outcome = await supervisor.handle(run_id).outcome()
                assert outcome.status == "stopped", f"round {round_}"
                born += (await supervisor.get(run_id)).started_at is None
                assert await supervisor.find(key) == []
    assert 0 < born < 200, "the race went both ways"
