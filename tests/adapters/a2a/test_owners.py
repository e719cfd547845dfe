"""Tasks of different owners never meet, whatever ids their clients choose, in every dialect."""

import asyncio
import contextlib
import json

import httpx
import pytest
from fastapi import Request

import stoppable
from stoppable.adapters.a2a import Exposed
from stoppable.server import Principal, create_app

from ...waiting import until
from . import method_table
from .serving import PATIENT, SECONDS, listening

NOT_FOUND = -32001
V1 = {"A2A-Version": "1.0"}


@stoppable.agent
async def secretive(word: str):
    """Say a word until it is let go, then return it."""
    BEGUN.append(word)
    while not GO.is_set():
        stoppable.append_partial(word)
        await stoppable.sleep(0.01)
    return f"{word}-result"


BEGUN: list[str] = []
GO = asyncio.Event()


@pytest.fixture(autouse=True)
def _closed():
    GO.__init__()
    BEGUN.clear()


def principal(request: Request) -> Principal:
    owner = request.headers.get("x-owner")
    return Principal(owner=owner, sees_all=owner is None)


@contextlib.asynccontextmanager
async def two_owners():
    """Serve the agent; yield clients of ann and bob, and the supervisor."""
    over = Exposed({"secretive": secretive}, policy=PATIENT)
    async with stoppable.Supervisor() as supervisor, contextlib.AsyncExitStack() as stack:
        app = create_app(supervisor, [secretive], routers=[over.router], services=[over.service], principal=principal)
        url = await stack.enter_async_context(listening(app, lifespan="on"))
        ann, bob = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=SECONDS, headers={"x-owner": owner})
            )
            for owner in ("ann", "bob")
        ]
        stack.callback(GO.set)
        yield ann, bob, supervisor


async def rpc(http, method, params, headers=()):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = (await http.post("/", json=body, headers=dict(headers))).text
    return json.loads(answer.partition("data: ")[2] or answer)  # a stream, if its error comes there


def said(word):
    return {"role": "user", "parts": [{"type": "text", "text": word}]}


class Reader:
    """Reads a stream in a task of its own."""

    def __init__(self, http, method, params):
        self.text = ""
        self.task = asyncio.create_task(self._read(http, method, params))

    async def _read(self, http, method, params):
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with http.stream("POST", "/", json=body) as answer:
            async for piece in answer.aiter_text():
                self.text += piece

    async def ended(self):
        async with asyncio.timeout(SECONDS):
            await self.task
        return [json.loads(line.removeprefix("data: "))["result"] for line in self.text.splitlines() if line]


async def test_the_same_id_names_two_tasks_of_two_owners_in_the_old_dialect():
    async with two_owners() as (ann, bob, supervisor):
        of_ann = Reader(ann, "tasks/sendSubscribe", {"id": "t1", "message": said("ANN")})
        await until(lambda: "ANN" in of_ann.text)
        for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
            assert (await rpc(bob, method, {"id": "t1"}))["error"]["code"] == NOT_FOUND, method
        assert (await rpc(bob, "tasks/list", {}))["result"] == []
        of_bob = Reader(bob, "tasks/sendSubscribe", {"id": "t1", "message": said("BOB")})
        await until(lambda: "BOB" in of_bob.text)
        assert [run.owner for run in supervisor.runs] == ["ann", "bob"]
        canceled = await rpc(bob, "tasks/cancel", {"id": "t1"})
        assert (canceled["result"]["id"], canceled["result"]["status"]["state"]) == ("t1", "canceled")
        assert [event["taskId"] for event in (await of_bob.ended())[-1:]] == ["t1"]
        assert [run.owner for run in supervisor.runs] == ["ann"]
        assert (await rpc(ann, "tasks/get", {"id": "t1"}))["result"]["status"]["state"] == "working"
        GO.set()
        assert (await of_ann.ended())[-1]["status"]["state"] == "completed"
        assert "ANN" not in of_bob.text
        assert "BOB" not in of_ann.text
        assert (await rpc(bob, "tasks/get", {"id": "t1"}))["result"]["status"]["state"] == "canceled"
        again = await rpc(bob, "tasks/send", {"id": "t1", "message": said("BOB")})
        assert "t1 " in again["error"]["message"]  # it has ended; the id is that of the client


async def test_a_blocking_message_with_the_id_of_another_owner_gets_its_own_result():
    async with two_owners() as (ann, bob, _):
        sent = [
            asyncio.create_task(rpc(http, "tasks/send", {"id": "t2", "message": said(word)}))
            for http, word in ((ann, "ANN"), (bob, "BOB"))
        ]
        await until(lambda: len(BEGUN) == 2)
        GO.set()
        answers = [(await one)["result"] for one in sent]
        assert [answer["id"] for answer in answers] == ["t2", "t2"]
        assert [answer["artifacts"][-1]["parts"][0]["text"] for answer in answers] == ["ANN-result", "BOB-result"]
        for answer, other in zip(answers, ("BOB", "ANN"), strict=True):
            assert other not in json.dumps(answer)


async def test_an_id_that_the_server_made_cannot_be_taken_over_by_choosing_it():
    async with two_owners() as (ann, bob, supervisor):
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "ANN"}]}}
        body["configuration"] = {"returnImmediately": True}
        task = (await ann.post("/message:send", json=body, headers=V1)).json()["task"]
        nobody = httpx.AsyncClient(base_url=bob.base_url, timeout=SECONDS)  # sees every run; its tasks have no owner
        for http in (bob, nobody):
            reader = Reader(http, "tasks/sendSubscribe", {"id": task["id"], "message": said("BOB")})
            await until(lambda reader=reader: "BOB" in reader.text)
            await rpc(http, "tasks/cancel", {"id": task["id"]})
            await reader.ended()
            assert "ANN" not in reader.text
        await nobody.aclose()
        assert [run.owner for run in supervisor.runs] == ["ann"]
        found = (await ann.get(f"/tasks/{task['id']}", headers=V1)).json()
        assert found["status"]["state"] == "TASK_STATE_WORKING"
        # Its owner may continue it in the old dialect.
        assert (await rpc(ann, "tasks/cancel", {"id": task["id"]}))["result"]["status"]["state"] == "canceled"


def in_jsonrpc(version, methods):
    """Return requests that name a task, as a function of its id: each is an async function of the client."""

    def request(method, params):
        return lambda http: rpc(http, method, params, V1 if version == "1.0" else {})

    return lambda task_id: [request(method, params(task_id)) for method, params in methods.items()]


def over_rest():
    def request(method, path, body=None):
        async def call(http):
            answer = await http.request(method, path, json=body, headers=V1)
            assert answer.status_code == 404, answer.text
            return {"error": {"code": NOT_FOUND}}

        return call

    return lambda task_id: [
        request("GET", f"/tasks/{task_id}"),
        request("POST", f"/tasks/{task_id}:cancel", {}),
        request("POST", f"/tasks/{task_id}:subscribe"),
        request("POST", "/message:send", message_1(task_id)),
    ]


def message_1(task_id):
    return {"message": {"messageId": "m", "role": "ROLE_USER", "taskId": task_id, "parts": [{"text": "BOB"}]}}


def message_03(task_id):
    parts = [{"kind": "text", "text": "BOB"}]
    return {"message": {"kind": "message", "messageId": "m", "role": "user", "taskId": task_id, "parts": parts}}


def named(task_id):
    return {"id": task_id}


DIALECTS = {
    "1.0": in_jsonrpc(
        "1.0", {"GetTask": named, "CancelTask": named, "SendMessage": message_1, "SubscribeToTask": named}
    ),
    "0.3": in_jsonrpc(
        "0.3", {"tasks/get": named, "tasks/cancel": named, "message/send": message_03, "tasks/resubscribe": named}
    ),
    "REST": over_rest(),
}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_id_of_another_owners_task_is_not_found(dialect):
    async with two_owners() as (ann, bob, supervisor):
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "ANN"}]}}
        body["configuration"] = {"returnImmediately": True}
        task = (await ann.post("/message:send", json=body, headers=V1)).json()["task"]
        await until(lambda: BEGUN)
        for request in DIALECTS[dialect](task["id"]):
            answer = await request(bob)
            assert answer["error"]["code"] == NOT_FOUND, answer
        assert (await bob.get("/tasks", headers=V1)).json().get("tasks", []) == []
        assert [run.token.stopped for run in supervisor.runs] == [False]
    assert BEGUN == ["ANN"]


async def test_the_table_of_methods_in_the_docs_is_what_a_server_answers():
    assert await method_table.generate() == method_table.written(), "python -m tests.adapters.a2a.method_table"
