"""What the public conformance suites ask of a system under test, over JSON-RPC, REST and gRPC."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import a2a_pb2
from a2a.utils.errors import TaskNotCancelableError
from google.protobuf.json_format import MessageToDict

from .serving import SECONDS, Served, Stream, card_for, message, state_of

ROOT = Path(__file__).parents[3]
BINDINGS = ["JSONRPC", "HTTP+JSON", "GRPC"]

ENDS = {
    "tck-complete-task": ["COMPLETED"],
    "tck-input-required": ["INPUT_REQUIRED"],
    "tck-reject-task": ["REJECTED"],
    "tck-artifact-text": ["COMPLETED"],
    "tck-artifact-file": ["COMPLETED"],
    "tck-artifact-file-url": ["COMPLETED"],
    "tck-artifact-data": ["COMPLETED"],
    "tck-stream-001": ["WORKING", "COMPLETED"],
    "tck-stream-002": ["COMPLETED"],
    "tck-stream-003": ["WORKING", "COMPLETED"],
    "tck-stream-ordering-001": ["WORKING", "COMPLETED"],
    "tck-stream-artifact-text": ["WORKING", "COMPLETED"],
    "tck-stream-artifact-file": ["WORKING", "COMPLETED"],
    "tck-stream-artifact-chunked": ["WORKING", "COMPLETED"],
    "any-other": ["WORKING", "COMPLETED"],
}
PARTS = {
    "tck-artifact-text": {"text": "Generated text content"},
    "tck-artifact-file": {"raw": "b3V0cHV0", "filename": "output.txt", "mediaType": "text/plain"},
    "tck-artifact-file-url": {
        "url": "https://example.com/output.txt",
        "filename": "output.txt",
        "mediaType": "text/plain",
    },
    "tck-artifact-data": {"data": {"key": "value", "count": 42.0}},
    "tck-stream-001": {"text": "Stream hello from TCK"},
    "tck-stream-artifact-file": {"raw": "b3V0cHV0", "filename": "output.txt", "mediaType": "text/plain"},
}


@contextlib.contextmanager
def system_under_test(*options):
    """Start it as a process; its addresses for HTTP and gRPC."""
    command = [sys.executable, "-m", "tests.adapters.a2a.system_under_test", *options]
    environment = {**os.environ, "TCK_STREAMING_TIMEOUT": str(SECONDS)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def addresses(grpc_thread):
    with system_under_test() as addresses:
        yield addresses


@pytest.fixture(scope="module")
def plain_addresses(grpc_thread):
    with system_under_test("--plain") as addresses:
        yield addresses


@contextlib.asynccontextmanager
async def speaking(binding, addresses):
    url, address = addresses
    card = card_for({"JSONRPC": url + "/", "HTTP+JSON": url, "GRPC": address}[binding], binding)
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        config = ClientConfig(
            httpx_client=http, supported_protocol_bindings=[binding], grpc_channel_factory=grpc.aio.insecure_channel
        )
        async with ClientFactory(config).create(card) as client:
            yield Served(url, None, client, http)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_each_prefix_means_what_the_suites_expect(addresses, binding):
    async with speaking(binding, addresses) as server:
        for prefix, states in ENDS.items():
            stream = server.stream(message_id=f"{prefix}-1")
            seen = await stream.ended()
            assert [state for state in seen if state != "SUBMITTED"] == states, prefix
            task = await server.get(stream.task_id)
            assert state_of(task) == states[-1]
            if prefix in PARTS:
                (artifact,) = task.artifacts
                assert MessageToDict(artifact.parts[0]) == PARTS[prefix]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_artifact_comes_in_chunks(addresses, binding):
    async with speaking(binding, addresses) as server:
        stream = server.stream(message_id="tck-stream-artifact-chunked-1")
        await stream.ended()
        chunks = [event.artifact_update for event in stream.events if event.HasField("artifact_update")]
        (artifact,) = (await server.get(stream.task_id)).artifacts
    assert [(chunk.append, chunk.last_chunk) for chunk in chunks] == [(False, False), (True, True)]
    assert "".join(part.text for part in artifact.parts) == "chunk-1 chunk-2"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_message_may_be_answered_without_a_task(addresses, binding):
    async with speaking(binding, addresses) as server:
        (event,) = [event async for event in server.client.send_message(message(message_id="tck-message-response-1"))]
    assert event.message.parts[0].text == "Direct message response"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_that_waits_is_canceled_and_one_that_ended_is_not(addresses, binding):
    async with speaking(binding, addresses) as server:
        waits, ended = server.stream(message_id="tck-input-required-1"), server.stream(message_id="tck-complete-task-1")
        await waits.ended()
        await ended.ended()
        assert state_of(await server.cancel(waits.task_id)) == "CANCELED"
        with pytest.raises(TaskNotCancelableError):
            await server.cancel(ended.task_id)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_running_task_is_subscribed_to_again_and_canceled(addresses, binding):
    async with speaking(binding, addresses) as server:
        stream = server.stream(message_id="test-resubscribe-message-id-1")
        task_id = await stream.started()
        again = Stream(server.client.subscribe(a2a_pb2.SubscribeToTaskRequest(id=task_id)))
        assert await again.started() == task_id
        assert state_of(await server.cancel(task_id, stoppable={"mode": "immediate"})) == "CANCELED"
        assert (await stream.ended())[-1] == (await again.ended())[-1] == "CANCELED"


async def test_the_card_may_be_cached(addresses):
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        address = addresses[0] + "/.well-known/agent-card.json"
        first = await http.get(address)
        assert "max-age" in first.headers["cache-control"]
        again = await http.get(address, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert {one["protocolBinding"] for one in first.json()["supportedInterfaces"]} == set(BINDINGS)


async def test_protocol_0_3_is_served_besides(addresses):
    sent = {"role": "user", "kind": "message", "messageId": "tck-complete-task-1"}
    sent["parts"] = [{"kind": "text", "text": "go"}]
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": sent}}
        answer = await http.post(addresses[0] + "/", json=rpc)
    assert answer.json()["result"]["status"]["state"] == "completed"


async def test_the_suite_for_0_3_has_a_card_of_its_own_and_tasks_that_wait():
    sent = {"role": "user", "kind": "message", "messageId": "any", "parts": [{"kind": "text", "text": "go"}]}
    with system_under_test("--protocol", "0.3") as (url, _):
        async with httpx.AsyncClient(timeout=SECONDS) as http:
            card = (await http.get(url + "/.well-known/agent-card.json")).json()
            rpc = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": sent}}
            task = (await http.post(card["url"], json=rpc)).json()["result"]
            rpc = {"jsonrpc": "2.0", "id": 2, "method": "tasks/cancel", "params": {"id": task["id"]}}
            canceled = (await http.post(card["url"], json=rpc)).json()["result"]
    assert (task["status"]["state"], canceled["status"]["state"]) == ("input-required", "canceled")


@pytest.mark.parametrize("binding", BINDINGS)
async def test_the_plain_sdk_follows_the_same_scripts(plain_addresses, binding):
    async with speaking(binding, plain_addresses) as server:
        waits, ended = server.stream(message_id="tck-input-required-1"), server.stream(message_id="tck-stream-001-1")
        assert (await waits.ended())[-1] == "INPUT_REQUIRED"
        assert [state for state in await ended.ended() if state != "SUBMITTED"] == ENDS["tck-stream-001"]
        canceled = await server.cancel(waits.task_id)
    assert state_of(canceled) == "CANCELED"
    assert not canceled.metadata, "the adapter would say there what it did"
