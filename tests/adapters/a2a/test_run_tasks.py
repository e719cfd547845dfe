"""The tasks of a server's agents are what the store knows of their runs: they survive a restart, and are forgotten."""

import asyncio
import contextlib
import time

import httpx
import pytest

import stoppable
from stoppable.adapters.a2a import Exposed
from stoppable.server import create_app

from ...waiting import until
from .serving import PATIENT, SECONDS, listening

V1 = {"A2A-Version": "1.0"}
BEGUN: list[str] = []


@stoppable.agent
async def worker(text: str):
    """Complete, fail, or work until it is stopped, as it is told."""
    BEGUN.append(text)
    stoppable.append_partial(f"{text} so far")
    if text == "fail":
        raise ValueError("the tool is broken")
    if text == "work":
        await stoppable.sleep(60)
    return {"text": text}


@pytest.fixture(autouse=True)
def _nothing_begun():
    BEGUN.clear()


@contextlib.asynccontextmanager
async def serving(store):
    over = Exposed({"worker": worker}, policy=PATIENT)
    async with stoppable.Supervisor(store) as supervisor:
        app = create_app(supervisor, [worker], routers=[over.router], services=[over.service])
        async with listening(app, lifespan="on") as url, httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            yield http, supervisor, over._handlers["worker"].task_store._store


async def send(http, text, *, at_once=False):
    sent = {"messageId": text, "role": "ROLE_USER", "contextId": "c", "parts": [{"text": text}]}
    body = {"message": sent, "configuration": {"returnImmediately": at_once}}
    return (await http.post("/message:send", json=body, headers=V1)).json()["task"]


async def get(http, task_id):
    return (await http.get(f"/tasks/{task_id}", headers=V1)).json()


async def listed(http, **query):
    answer = (await http.get("/tasks", params=query, headers=V1)).json()
    return [task["id"] for task in answer.get("tasks", [])], answer


async def three_tasks(http):
    """Let one task complete, one fail, and cancel one; return them as the server told them."""
    done, failed = await send(http, "done"), await send(http, "fail")
    working = await send(http, "work", at_once=True)
    await until(lambda: "work" in BEGUN)
    canceled = (await http.post(f"/tasks/{working['id']}:cancel", json={}, headers=V1)).json()
    return done, failed, canceled


def facts(task):
    parts = {one["name"]: one["parts"] for one in task.get("artifacts", [])}
    return task["id"], task["contextId"], task["status"]["state"], parts, task.get("metadata", {}).get("stoppable")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_an_ended_task_is_read_from_its_run_and_takes_no_memory(kind, tmp_path):
    async with serving(None if kind == "memory" else f"sqlite:///{tmp_path}/runs.db") as (http, _, tasks):
        for told in await three_tasks(http):
            assert facts(await get(http, told["id"])) == facts(told)
        assert (tasks._live, dict(tasks._without_run)) == ({}, {})
        failed = await get(http, (await listed(http, status="TASK_STATE_FAILED"))[0][0])
        assert "the tool is broken" in failed["status"]["message"]["parts"][0]["text"]


async def test_tasks_survive_a_restart(tmp_path):
    async with serving(f"sqlite:///{tmp_path}/runs.db") as (http, _, _):
        told = await three_tasks(http)
    async with serving(f"sqlite:///{tmp_path}/runs.db") as (http, _, _):
        for task in told:
            assert facts(await get(http, task["id"])) == facts(task)
        again = await http.post(f"/tasks/{told[2]['id']}:cancel", json={}, headers=V1)
        assert again.json()["status"]["state"] == "TASK_STATE_CANCELED"
        late = await http.post(f"/tasks/{told[0]['id']}:cancel", json={}, headers=V1)
        assert late.json()["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {}}
        assert len((await http.post("/", json=body)).json()["result"]) == 3


async def test_tasks_are_listed_in_pages_the_last_one_first():
    async with serving(None) as (http, _, _):
        told = [(await send(http, f"done {number}"))["id"] for number in range(5)]
        working = (await send(http, "work", at_once=True))["id"]
        found, token = [], None
        while token != "":
            page, answer = await listed(http, pageSize=2, **({} if token is None else {"pageToken": token}))
            assert (len(page), answer["totalSize"]) == (2, 6)
            found, token = found + page, answer.get("nextPageToken", "")
        assert found == [working, *reversed(told)]
        assert (await listed(http, status="TASK_STATE_COMPLETED"))[0] == told[::-1]
        assert (await listed(http, contextId="c"))[1]["totalSize"] == 6
        assert (await listed(http, contextId="another"))[0] == []
        await http.post(f"/tasks/{working}:cancel", json={"metadata": {"mode": "immediate"}}, headers=V1)


async def test_a_task_is_forgotten_with_its_run():
    async with serving(None) as (http, supervisor, _):
        task = await send(http, "done")
        await supervisor._core.store.purge(time.time() + 60)
        async with asyncio.timeout(SECONDS):
            while (await http.get(f"/tasks/{task['id']}", headers=V1)).status_code != 404:
                await asyncio.sleep(0.01)
        assert (await listed(http))[0] == []


async def test_rejected_tasks_are_remembered_though_they_have_no_run():
    async with serving(None) as (http, supervisor, tasks):
        hold = (await supervisor.stop_where(agent="worker", hold=True)).hold
        task = await send(http, "done")
        assert task["status"]["state"] == "TASK_STATE_REJECTED"
        assert (await get(http, task["id"]))["status"]["state"] == "TASK_STATE_REJECTED"
        assert (await listed(http))[0] == [task["id"]]
        await supervisor.release(hold.id)
        assert tasks._live == {}
