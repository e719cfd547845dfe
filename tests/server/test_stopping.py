"""A stop over HTTP: of exactly that run, with what it started, answered at once."""

import asyncio
import threading
import time

import httpx
import pytest

import stoppable
from stoppable.testing import ModelServer
from stoppable.testing.model_server import Pause, Reply

from .serving import DEADLINE, asked_for, client_of, ended, event, in_process, served, started


class Door:
    """Where agents of a test wait, on whatever loop or thread, until it is opened."""

    def __init__(self):
        self._open = threading.Event()

    def open(self):
        self._open.set()

    async def passed(self):
        while not self._open.is_set():
            await asyncio.sleep(0.002)

    def passed_blocking(self, seconds):
        return self._open.wait(seconds)

    @property
    def is_open(self):
        return self._open.is_set()


@pytest.fixture
def door():
    door = Door()
    yield door
    door.open()


async def test_a_stop_during_an_llm_call_halts_at_the_next_boundary_and_keeps_the_partial():
    pause = Pause()
    with ModelServer(Reply("first"), Reply("second", pause=pause), Reply("never")) as model:

        async def research(questions):
            async with httpx.AsyncClient(base_url=model.url, timeout=30) as llm:
                for question in questions:
                    async with stoppable.boundary("llm", "ask"):
                        answer = await llm.post("/chat/completions", json={"model": "m", "messages": [], "n": question})
                    text = answer.json()["choices"][0]["message"]["content"]
                    stoppable.append_partial(text)

        with served([research]) as service:
            async with client_of(service) as client:
                run_id = await started(client, "research", {"questions": [1, 2, 3]})
                await event(client, run_id, "partial")
                await event(client, run_id, "entered", after=4)

                response = await client.post(f"/runs/{run_id}/stop", json={"reason": "wrong question"})

                assert response.status_code == 202
                told = response.json()
                assert (told["runId"], told["status"]) == (run_id, "stopping")
                assert told["receipt"]["inFlight"] == ["llm:ask"]
                assert told["receipt"]["reason"]["message"] == "wrong question"

                pause.end()
                record = await ended(client, run_id)
                assert record["status"] == "stopped"
                assert record["outcome"]["partial"] == "firstsecond", "the paid answer is kept"
                assert len(model.requests) == 2, "nothing was asked after the stop"
                receipt = (await client.get(f"/runs/{run_id}/receipt")).json()
                assert receipt["enteredAfter"] == []
                assert {(node["kind"], node["fate"]) for node in receipt["entries"]} == {
                    ("run", "stopped"),
                    ("llm", "finished"),
                }


async def stubborn(door):
    async with stoppable.boundary("tool", "hold"):
        await door.passed()
    stoppable.check()


async def test_the_same_stop_again_changes_nothing_and_a_harder_mode_escalates(door):
    async def agent():
        await stubborn(door)

    with served([agent]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "agent")
            await event(client, run_id, "entered")

            async def stop(mode, reason):
                response = await client.post(f"/runs/{run_id}/stop", json={"mode": mode, "reason": reason})
                return response.status_code, response.json()["receipt"]

            code, first = await stop("graceful", "one")
            assert (code, first["answer"]) == (202, "accepted")
            code, again = await stop("graceful", "two")
            assert (code, again["answer"]) == (202, "already_stopping")
            for name in ("mode", "status", "inFlight", "entries", "enteredAfter"):
                assert again[name] == first[name], "the same receipt"
            assert again["reason"]["message"] == "one", "the first reason stays"
            assert again["requestedAt"] == pytest.approx(first["requestedAt"], abs=1e-5)
            code, lower = await stop("cooperative", "three")
            assert (code, lower["answer"], lower["mode"]) == (202, "already_stopping", "graceful")
            code, harder = await stop("immediate", "four")
            assert (code, harder["answer"], harder["mode"]) == (202, "escalated", "immediate")
            assert harder["reason"]["message"] == "one"
            record = await ended(client, run_id)
            assert (record["status"], record["outcome"]["rung"]) == ("stopped", "cancel")
            response = await client.post(f"/runs/{run_id}/stop", json={"mode": "kill"})
            assert response.status_code == 200
            assert response.json()["receipt"]["answer"] == "already_finished"


async def test_a_stop_may_arrive_before_its_start():
    ran = []

    async def agent():
        ran.append(1)

    with served([agent]) as service:
        async with client_of(service) as client:
            stop = await client.post("/runs/made-by-the-browser/stop", params={"ifUnknown": "wait"})
            assert stop.status_code == 202
            assert stop.json()["receipt"]["status"] == "pending"
            start = await client.post("/runs", json={"agent": "agent", "runId": "made-by-the-browser"})
            assert start.status_code in {200, 201}
            assert start.headers["stoppable-run-id"] == "made-by-the-browser"
            assert start.headers["location"] == "/runs/made-by-the-browser"
            assert start.json()["status"] == "stopped"
            assert not ran


async def test_a_start_may_be_repeated_and_another_one_with_its_id_is_a_conflict():
    async def agent(n):
        return n

    with served([agent]) as service:
        async with client_of(service) as client:
            body = {"agent": "agent", "input": 1, "runId": "x"}
            assert (await client.post("/runs", json=body)).status_code == 201
            again = await client.post("/runs", json=body)
            assert (again.status_code, again.json()["id"]) == (200, "x")
            other = await client.post("/runs", json={**body, "input": 2})
            assert (other.status_code, other.json()["error"]["code"]) == (409, "run_conflict")
            assert (await ended(client, "x"))["outcome"]["result"] == 1


async def test_a_finished_run_answers_200_and_an_unknown_one_404():
    async def agent():
        return "done"

    with served([agent]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "agent")
            await ended(client, run_id)
            response = await client.post(f"/runs/{run_id}/stop")
            assert response.status_code == 200
            assert response.json()["status"] == "completed"
            assert response.json()["receipt"]["answer"] == "already_finished"
            assert (await client.get(f"/runs/{run_id}")).json()["outcome"]["result"] == "done"
            receipt = await client.get(f"/runs/{run_id}/receipt")
            assert (receipt.status_code, receipt.json()["error"]["code"]) == (409, "not_stopped")

            for request in (
                client.post("/runs/nobody/stop"),
                client.get("/runs/nobody"),
                client.get("/runs/nobody/tree"),
                client.get("/runs/nobody/receipt"),
                client.get("/runs/nobody/events"),
            ):
                response = await request
                assert (response.status_code, response.json()["error"]["code"]) == (404, "run_not_found")


async def test_wait_answers_when_the_run_is_over_or_the_time_is(door):
    async def agent():
        await stubborn(door)

    async def polite():
        while True:
            await stoppable.sleep(10)

    with served([agent, polite]) as service:
        async with client_of(service) as client:
            run_id = await started(client, "polite")
            response = await client.post(f"/runs/{run_id}/stop", params={"wait": 10})
            assert (response.status_code, response.json()["status"]) == (200, "stopped")

            run_id = await started(client, "agent")
            await event(client, run_id, "entered")
            began = time.monotonic()
            response = await client.post(f"/runs/{run_id}/stop", params={"wait": 0.2})
            assert (response.status_code, response.json()["status"]) == (202, "stopping")
            assert time.monotonic() - began >= 0.2
            door.open()
            assert (await ended(client, run_id))["status"] == "stopped"


async def test_a_chain_of_agents_stops_as_one_and_its_siblings_go_on(door):
    @stoppable.agent
    async def leaf():
        await stubborn(door)

    @stoppable.agent
    async def middle():
        await leaf()

    async def top():
        await middle()

    with served([top]) as service:
        async with client_of(service) as client:
            mine, other = [await started(client, "top") for _ in range(2)]
            trees = {}
            for root in (mine, other):
                async with asyncio.timeout(10):
                    while len(trees.get(root, ())) < 3:
                        trees[root] = (await client.get(f"/runs/{root}/tree")).json()["runs"]
                assert [run["name"] for run in trees[root]] == ["top", "middle", "leaf"]
                await event(client, trees[root][2]["id"], "entered")

            response = await client.post(f"/runs/{mine}/stop", json={"mode": "immediate"}, params={"wait": 10})
            assert response.json()["status"] == "stopped"
            assert response.json()["receipt"]["inFlight"] == ["tool:hold"]
            statuses = {run["status"] for run in (await client.get(f"/runs/{mine}/tree")).json()["runs"]}
            assert statuses == {"stopped"}
            statuses = {run["status"] for run in (await client.get(f"/runs/{other}/tree")).json()["runs"]}
            assert statuses == {"running"}
            children = (await client.get("/runs", params={"parent": other})).json()["runs"]
            assert [run["name"] for run in children] == ["middle"]

            # a child alone: its parent is told by what it gets
            child = trees[other][1]["id"]
            response = await client.post(f"/runs/{child}/stop", json={"mode": "immediate"}, params={"wait": 10})
            assert response.json()["status"] == "stopped"
            assert (await ended(client, other))["status"] == "failed"


async def stop_all(client, runs):
    for run_id in runs:
        response = await client.post(f"/runs/{run_id}/stop", json={"mode": "graceful"})
        assert response.status_code in {200, 202}


async def test_a_stop_is_answered_while_a_def_agent_spins(tmp_path):
    """In a process of its own, since the client would wait for the interpreter as well."""
    with in_process("spinning") as service:
        async with client_of(service) as client:
            others = [await started(client, "other") for _ in range(20)]
            run_id = await started(client, "spinner", {"until": str(tmp_path / "enough")})
            await event(client, run_id, "entered")
            await stop_all(client, [*others, run_id])
            (tmp_path / "enough").touch()  # until here it spun
            assert (await ended(client, run_id))["status"] == "completed", "it never looked: too late"


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
async def test_an_agent_that_exits_ends_its_own_run_alone(leave):
    async def leaver():
        raise leave

    async def sleeper():
        await stoppable.sleep(60)

    with served([leaver, sleeper]) as service:
        async with client_of(service) as client:
            before = await started(client, "sleeper")
            assert (await ended(client, await asked_for(client, "leaver")))["status"] == "failed"
            after = await started(client, "sleeper")
            for run_id in (before, after):
                assert (await client.get(f"/runs/{run_id}")).json()["status"] == "running"
                stopped = await client.post(f"/runs/{run_id}/stop", params={"wait": DEADLINE})
                assert stopped.json()["status"] == "stopped"


async def test_a_stop_is_answered_while_an_async_agent_blocks_the_loop_of_the_agents(door):
    passed = []

    async def blocker():
        async with stoppable.boundary("tool", "block"):
            passed.append(door.passed_blocking(DEADLINE))
        stoppable.check()

    async def other():
        await stoppable.sleep(30)

    with served([blocker, other]) as service:
        async with client_of(service) as client:
            others = [await started(client, "other") for _ in range(20)]
            run_id = await started(client, "blocker")
            await event(client, run_id, "entered")
            late = await asked_for(client, "other")  # a start does not wait for the loop either
            await stop_all(client, [*others, run_id, late])
            assert not passed, "all of this was answered while the loop was blocked"
            door.open()
            assert (await ended(client, run_id))["status"] == "stopped"
            assert (await ended(client, late))["status"] == "stopped"
