"""Agents served over A2A: protocol 1.0 and 0.3, REST, and the 0.1 dialect."""

import asyncio
import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest, GetTaskRequest, Part
from fastapi import Request
from google.protobuf.json_format import ParseDict

import stoppable
from stoppable.adapters.a2a import Exposed
from stoppable.server import Principal, create_app

from .serving import PATIENT, SECONDS, Stream, listening, message, state_of
from .wire import Subscription, call

EXAMPLES = Path(__file__).parents[3] / "examples"
BRISK = dataclasses.replace(PATIENT, grace=0.2)  # for agents that are in the middle of a step


@stoppable.agent
async def stepper(label: str, steps: int = 10):
    """Take steps, each when it may."""
    for step in range(steps):
        async with stoppable.boundary("tool", f"{label}{step}"):
            await TURNS[label].acquire()
        stoppable.append_partial(f"{label}{step} ")
    return {"label": label, "steps": steps}


@stoppable.agent
async def failing():
    """Fail."""
    raise ValueError("the tool is broken")


TURNS = {}


@pytest.fixture(autouse=True)
def _turns():
    TURNS.clear()
    TURNS.update({label: asyncio.Semaphore(0) for label in "ABC"})


@contextlib.asynccontextmanager
async def exposed(*agents, send_buffer=None, **options):
    """Serve agents, and yield the address."""
    named = {agent.__name__: agent for agent in agents}
    over = Exposed(named, policy=BRISK)
    async with stoppable.Supervisor() as supervisor:
        app = create_app(supervisor, named, routers=[over.router], services=[over.service], **options)
        async with listening(app, lifespan="on", send_buffer=send_buffer) as url:
            yield url


@contextlib.asynccontextmanager
async def client_of(url, *bindings, headers=None):
    async with httpx.AsyncClient(timeout=SECONDS, headers=headers) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=list(bindings))
        yield await ClientFactory(config).create_from_url(url)


def is_step(event):
    return event["type"] == "TaskArtifactUpdateEvent"


async def test_of_three_tasks_in_the_old_dialect_one_is_canceled():
    """Three subscriptions; B's stream gets a final ``canceled`` and closes, A and C complete."""
    async with exposed(stepper) as url:
        streams = {label: Subscription(url, f"task-{label}", label) for label in "ABC"}
        TURNS["B"].release()
        await streams["B"].heard(is_step)
        answer = await call(url, "tasks/cancel", {"id": "task-B"})
        assert answer["result"]["status"]["state"] == "canceled"
        last = (await streams["B"].closed())[-1]
        assert (last["type"], last["final"], last["status"]["state"]) == ("TaskStatusUpdateEvent", True, "canceled")
        assert b"\r" not in streams["B"].raw
        for label in "AC":
            for _ in range(10):
                TURNS[label].release()
            ended = (await streams[label].closed())[-1]
            assert (ended["final"], ended["status"]["state"]) == (True, "completed")
        states = [
            (await call(url, "tasks/get", {"id": f"task-{label}"}))["result"]["status"]["state"] for label in "ABC"
        ]
        assert states == ["completed", "canceled", "completed"]
        again = await call(url, "tasks/cancel", {"id": "task-B"})
        assert again["result"]["status"]["state"] == "canceled"
        late = await call(url, "tasks/cancel", {"id": "task-A"})
        assert late["error"]["code"] == -32002
        nobody = await call(url, "tasks/cancel", {"id": "nobody"})
        assert nobody["error"]["code"] == -32001
        listed = (await call(url, "tasks/list", {}))["result"]
        assert {task["id"] for task in listed} == {"task-A", "task-B", "task-C"}


async def test_the_old_dialect_resubscribes_and_sends():
    async with exposed(stepper) as url:
        for _ in range(10):
            TURNS["A"].release()
        params = {
            "id": "one",
            "message": {"role": "user", "parts": [{"type": "data", "data": {"label": "A", "steps": 2}}]},
        }
        sent = (await call(url, "tasks/send", params))["result"]
        assert sent["status"]["state"] == "completed"
        assert sent["artifacts"][-1]["parts"] == [{"type": "data", "data": {"label": "A", "steps": 2.0}}]
        over = Subscription(url, "one", "", method="tasks/resubscribe")
        assert [event["status"]["state"] for event in await over.closed()] == ["completed"]
        first = Subscription(url, "two", "B")
        await first.heard(lambda event: event.get("status", {}).get("state") == "working")
        second = Subscription(url, "two", "", method="tasks/resubscribe")
        await second.heard(lambda event: True)
        await call(url, "tasks/cancel", {"id": "two"})
        assert (await first.closed())[-1]["status"]["state"] == "canceled"
        assert (await second.closed())[-1]["status"]["state"] == "canceled"


@pytest.mark.parametrize("bindings", [("JSONRPC",), ("HTTP+JSON",)])
async def test_the_clients_of_the_sdk_speak_to_it(bindings):
    async with exposed(stepper) as url, client_of(url, *bindings) as client:
        stream = Stream(client.send_message(message("B")))
        task_id = await stream.started()
        TURNS["B"].release()
        async with asyncio.timeout(SECONDS):
            while not any(event.HasField("artifact_update") for event in stream.events):
                await asyncio.sleep(0.005)
        canceling = asyncio.create_task(client.cancel_task(CancelTaskRequest(id=task_id)))
        TURNS["B"].release()
        assert state_of(await canceling) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        task = await client.get_task(GetTaskRequest(id=task_id))
        assert task.artifacts[0].parts[0].text.startswith("B0 ")


async def test_protocol_0_3_has_its_own_spelling():
    async with exposed(stepper) as url, httpx.AsyncClient(timeout=SECONDS) as http:
        sent = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "B"}]}
        params = {"message": sent, "configuration": {"blocking": False}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        task = (await http.post(url + "/", json=body)).json()["result"]
        assert task["kind"] == "task"
        body = {"jsonrpc": "2.0", "id": 2, "method": "tasks/cancel", "params": {"id": task["id"]}}
        canceled = (await http.post(url + "/", json=body)).json()["result"]
        assert (canceled["kind"], canceled["status"]["state"]) == ("task", "canceled")


async def test_a_data_part_has_the_keyword_arguments():
    async with exposed(stepper) as url, client_of(url) as client:
        for _ in range(3):
            TURNS["C"].release()
        request = message()
        del request.message.parts[:]
        request.message.parts.append(ParseDict({"data": {"label": "C", "steps": 3}}, Part()))
        stream = Stream(client.send_message(request))
        assert (await stream.ended())[-1] == "COMPLETED"
        task = await client.get_task(GetTaskRequest(id=stream.task_id))
        assert {artifact.name for artifact in task.artifacts} == {"partial", "result"}


async def test_each_of_several_agents_has_its_own_address():
    async with exposed(stepper, failing) as url, httpx.AsyncClient(timeout=30) as http:
        card = (await http.get(url + "/a2a/failing/.well-known/agent-card.json")).json()
        assert card["name"] == "failing"
        assert card["supportedInterfaces"][0]["url"] == url + "/a2a/failing/"
        assert (await http.get(url + "/.well-known/agent-card.json")).status_code == 404
        assert (await http.get(url + "/a2a/stepper/agentCard")).json()["url"] == url + "/a2a/stepper/"
        async with client_of(url + "/a2a/failing") as client:
            stream = Stream(client.send_message(message()))
            assert (await stream.ended())[-1] == "FAILED"
            task = await client.get_task(GetTaskRequest(id=stream.task_id))
            assert "the tool is broken" in task.status.message.parts[0].text


async def test_arguments_that_do_not_fit_are_rejected():
    async with exposed(stepper) as url, client_of(url) as client:
        request = message()
        del request.message.parts[:]
        request.message.parts.append(ParseDict({"data": {"colour": "red"}}, Part()))
        stream = Stream(client.send_message(request))
        assert (await stream.ended())[-1] == "REJECTED"


async def test_a_key_is_asked_for_here_too():
    async with exposed(stepper, api_key="a-key-of-some-length") as url, httpx.AsyncClient(timeout=30) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
        for path in ("/", "/a2a/stepper/"):
            assert (await http.post(url + path, json=body)).status_code == 401
        assert (await http.get(url + "/a2a/stepper/tasks")).status_code == 401
        assert (await http.post(url + "/a2a/stepper/tasks/x:cancel", json={})).status_code == 401


async def test_tasks_of_others_do_not_exist_and_scopes_count():
    def principal(request: Request) -> Principal:
        return Principal(
            owner=request.headers.get("x-owner"), scopes=request.headers.get("x-scopes", "read start stop")
        )

    async with exposed(stepper, principal=principal) as url:
        async with client_of(url, headers={"x-owner": "ann"}) as ann, client_of(url, headers={"x-owner": "bob"}) as bob:
            stream = Stream(ann.send_message(message("A")))
            task_id = await stream.started()
            with pytest.raises(Exception, match="not found"):
                await bob.cancel_task(CancelTaskRequest(id=task_id))
            async with httpx.AsyncClient(headers={"x-owner": "ann", "x-scopes": "read"}, timeout=30) as http:
                answer = await http.post(f"{url}/tasks/{task_id}:cancel", json={}, headers={"A2A-Version": "1.0"})
                assert answer.status_code == 403
            assert state_of(await ann.cancel_task(CancelTaskRequest(id=task_id))) == "CANCELED"
            await stream.ended()


@pytest.mark.slow
def test_the_example_runs_against_stoppable_serve():
    quick = {**os.environ, "STEP_SECONDS": "0.2", "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}
    command = [sys.executable, "-W", "ignore", "-m", "stoppable", "serve", "three_tasks_a2a", "--port", "0"]
    server = subprocess.Popen(command, cwd=EXAMPLES, env=quick, stderr=subprocess.PIPE, text=True)
    try:
        url = next(line.split()[1] for line in server.stderr if line.startswith("  at http"))
        command = [sys.executable, "-W", "ignore", "three_tasks_a2a.py", url]
        done = subprocess.run(
            command, cwd=EXAMPLES, env=quick, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "B: the cancel was answered with TASK_STATE_CANCELED",
            "A: TASK_STATE_COMPLETED after all of its steps",
            "B: TASK_STATE_CANCELED after some of its steps",
            "C: TASK_STATE_COMPLETED after all of its steps",
        ]
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
