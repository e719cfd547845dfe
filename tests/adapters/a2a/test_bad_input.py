"""Requests that make no sense get the specified errors, and stop nothing."""

import asyncio
import json

import httpx
import pytest

from .executors import Scripted
from .serving import SECONDS, Stream, message, served, state_of
from .test_serve import TURNS, _turns, client_of, exposed, stepper  # noqa: F401
from .wire import call, post

VERSION = {"A2A-Version": "1.0"}
ODD = ["", " ", "a/b", "ü", "x" * 1000, "../../etc", "%00", "a:b", "'; drop table runs; --", "\u2028", "{id}"]


def rpc(method, params, number=1):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


BROKEN = [
    (b"{", -32700),
    (b"", -32700),
    (b"[]", -32600),
    (b'"CancelTask"', -32600),
    (json.dumps({"jsonrpc": "2.0", "id": 1}).encode(), -32600),
    (json.dumps(rpc("CancelEverything", {})).encode(), -32601),
    (json.dumps(rpc("CancelTask", {})).encode(), -32602),
    (json.dumps(rpc("CancelTask", {"id": 7})).encode(), -32602),
    (json.dumps(rpc("CancelTask", "x")).encode(), -32600),
    (json.dumps(rpc("CancelTask", {"id": "nobody"})).encode(), -32001),
    (json.dumps(rpc("CancelTask", {"id": "nobody", "metadata": {"mode": "softly"}})).encode(), -32602),
]


async def test_requests_that_make_no_sense_stop_nothing(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        await stream.started()
        for body, code in BROKEN:
            answer = await server.http.post(
                server.url + "/", content=body, headers={**VERSION, "content-type": "application/json"}
            )
            assert answer.json()["error"]["code"] == code, (body, answer.text)
        inner.go.set()
        assert (await stream.ended())[-1] == "COMPLETED"


async def test_odd_ids_are_unknown_and_stop_nothing(supervisor):
    inner = Scripted()
    async with served(inner, supervisor) as server:
        stream = server.stream()
        await stream.started()
        for task_id in ODD:
            answer = await server.http.post(server.url + "/", json=rpc("CancelTask", {"id": task_id}), headers=VERSION)
            assert answer.json()["error"]["code"] in {-32001, -32602}, (task_id, answer.text)
        inner.go.set()
        assert (await stream.ended())[-1] == "COMPLETED"


async def old_state(url, task_id):
    answer = await call(url, "tasks/get", {"id": task_id})
    return answer["result"]["status"]["state"] if "result" in answer else None


@pytest.mark.parametrize("task_id", ["a/b c", "ü", "x" * 1000, "'; drop table runs; --", "a:b%00"])
async def test_a_task_with_an_odd_id_of_its_client_can_be_canceled(task_id):
    async with exposed(stepper) as url:
        params = {"id": task_id, "message": {"role": "user", "parts": [{"type": "text", "text": "A"}]}}
        sending = asyncio.create_task(call(url, "tasks/send", params))
        async with asyncio.timeout(SECONDS):
            while await old_state(url, task_id) != "working":
                await asyncio.sleep(0.01)
        assert (await call(url, "tasks/cancel", {"id": task_id}))["result"]["status"]["state"] == "canceled"
        assert (await sending)["result"]["status"]["state"] == "canceled"


async def test_the_old_dialect_says_what_is_wrong():
    async with exposed(stepper) as url:
        message = {"role": "user", "parts": [{"type": "text", "text": "A"}]}
        for params in (
            {"id": "x" * 1001, "message": message},
            {"id": 7, "message": message},
            {"id": "one"},
            {"id": "one", "message": {"parts": []}},
            {"id": "one", "message": {"parts": [{"type": "file"}]}},
            {"id": "one", "message": {"parts": "text"}},
        ):
            for method in ("tasks/send", "tasks/sendSubscribe"):
                assert (await call(url, method, params))["error"]["code"] == -32602, (method, params)
        assert (await call(url, "tasks/list", {}))["result"] == []


async def test_a_huge_part_is_refused_by_the_server():
    async with exposed(stepper) as url, httpx.AsyncClient(timeout=SECONDS) as http:
        huge = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x" * 2_000_000}]}}
        answer = await http.post(url + "/", json=rpc("SendMessage", huge), headers=VERSION)
        assert answer.status_code == 413
        form = await http.post(url + "/", content=b"{}", headers={"content-type": "text/plain"})
        assert form.status_code == 415
        async with client_of(url) as client:
            for _ in range(10):
                TURNS["A"].release()
            stream = Stream(client.send_message(message("A")))
            assert (await stream.ended())[-1] == "COMPLETED"


async def test_a_client_that_never_reads_holds_up_nobody(supervisor):
    class Chatty(Scripted):
        async def work(self, context, updater):
            while not self.go.is_set():
                await updater.start_work(updater.new_agent_message([]))
                self.effects += 1
                await asyncio.sleep(0)

    inner = Chatty()
    async with served(inner, supervisor) as server:
        sent = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}}
        body = rpc("SendStreamingMessage", sent)
        _, writer, status, _ = await post(server.url, body, headers=["A2A-Version: 1.0"])
        assert status == 200
        await inner.working.wait()
        async with asyncio.timeout(SECONDS):
            assert state_of(await server.cancel(inner.tasks[0])) == "CANCELED"
        writer.close()
