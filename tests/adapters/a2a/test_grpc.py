"""Agents served over gRPC, by the SDK's own client: what JSON-RPC and REST do, on a port of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import httpx
import pytest
from a2a.client import ClientConfig, ClientFactory
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import TaskNotCancelableError

import stoppable
from stoppable import InvalidArgument
from stoppable.adapters.a2a import Exposed
from stoppable.server import Principal, create_app

from .serving import PATIENT, SECONDS, Stream, listening, message, state_of
from .test_slow_readers import MOST_BYTES, resident, said_everything, talker

EXAMPLES = Path(__file__).parents[3] / "examples"
KEY = "a-key-of-some-length"
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]  # what is taken unread


@stoppable.agent
async def waiter(text: str):
    """Wait for a turn, then answer."""
    while not GO.is_set():
        await stoppable.sleep(0.01)
    return text


@stoppable.agent
async def echo(text: str):
    """Answer."""
    return text


GO = asyncio.Event()

pytestmark = pytest.mark.usefixtures("grpc_thread")


@pytest.fixture(autouse=True)
def _closed():
    GO.__init__()


@contextlib.asynccontextmanager
async def exposed(*agents, port=0, **options):
    """Serve agents over HTTP and gRPC; yield the address of HTTP."""
    named = {agent.__name__: agent for agent in agents}
    over = Exposed(named, policy=PATIENT, grpc=("127.0.0.1", port))
    async with stoppable.Supervisor() as supervisor:
        app = create_app(supervisor, named, routers=[over.router], services=[over.service], **options)
        async with listening(app, lifespan="on") as url:
            yield url


async def interface_of(url, **headers):
    """Return how the card says that gRPC is reached."""
    async with httpx.AsyncClient(timeout=SECONDS, headers=headers) as http:
        card = (await http.get(url + "/.well-known/agent-card.json")).json()
    [found] = [one for one in card["supportedInterfaces"] if one["protocolBinding"] == "GRPC"]
    return found


@contextlib.asynccontextmanager
async def client_of(url):
    config = ClientConfig(grpc_channel_factory=grpc.aio.insecure_channel, supported_protocol_bindings=["GRPC"])
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        config.httpx_client = http
        async with await ClientFactory(config).create_from_url(url) as client:
            yield client


async def test_a_message_is_answered_and_its_task_is_the_one_of_the_other_bindings():
    async with exposed(echo) as url, client_of(url) as client:
        stream = Stream(client.send_message(message("hello")))
        assert (await stream.ended())[-1] == "COMPLETED"
        task = await client.get_task(GetTaskRequest(id=stream.task_id))
        assert [part.text for artifact in task.artifacts for part in artifact.parts] == ["hello"]
        async with httpx.AsyncClient(headers={"A2A-Version": "1.0"}, timeout=30) as http:
            same = (await http.get(f"{url}/tasks/{stream.task_id}")).json()
        assert same["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_cancel_ends_the_task_and_its_stream_and_is_answered_alike_again():
    async with exposed(waiter) as url, client_of(url) as client:
        stream = Stream(client.send_message(message()))
        task_id = await stream.started()
        async with asyncio.timeout(SECONDS):
            canceled = await client.cancel_task(CancelTaskRequest(id=task_id))
        assert state_of(canceled) == "CANCELED"
        assert (await stream.ended())[-1] == "CANCELED"
        assert state_of(await client.cancel_task(CancelTaskRequest(id=task_id))) == "CANCELED"

        GO.set()
        stream = Stream(client.send_message(message()))
        assert (await stream.ended())[-1] == "COMPLETED"
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=stream.task_id))


async def test_a_stream_that_nobody_reads_keeps_little_and_holds_up_nobody():
    async with (
        exposed(talker, echo) as url,
        client_of(url + "/a2a/talker") as talkers,
        client_of(url + "/a2a/echo") as echos,
    ):
        address = (await interface_of(url + "/a2a/talker"))["url"]
        sent = message()
        sent.tenant = "talker"
        before = resident()
        async with grpc.aio.insecure_channel(address, options=SMALL_WINDOW) as channel:
            deaf = a2a_pb2_grpc.A2AServiceStub(channel).SendStreamingMessage(sent)
            task = await said_everything(talkers)
            grown = resident() - before
            assert not deaf.done()  # it is still open
            stream = Stream(echos.send_message(message("hello")))
            assert (await stream.ended())[-1] == "COMPLETED"
            async with asyncio.timeout(SECONDS):
                assert state_of(await talkers.cancel_task(CancelTaskRequest(id=task.id))) == "CANCELED"
        assert grown < MOST_BYTES, f"{grown:,} bytes"


async def test_the_tenant_of_a_call_names_one_of_several_agents():
    async with exposed(waiter, echo) as url, client_of(url + "/a2a/echo") as client:
        assert (await interface_of(url + "/a2a/echo"))["tenant"] == "echo"
        stream = Stream(client.send_message(message("hello")))
        assert (await stream.ended())[-1] == "COMPLETED"
        address = (await interface_of(url + "/a2a/waiter"))["url"]
        async with grpc.aio.insecure_channel(address) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            assert len((await stub.ListTasks(ListTasksRequest(tenant="echo"))).tasks) == 1
            assert len((await stub.ListTasks(ListTasksRequest(tenant="waiter"))).tasks) == 0
            for tenant in ("", "nobody"):
                with pytest.raises(grpc.aio.AioRpcError, match="its name is the tenant of a call"):
                    await stub.ListTasks(ListTasksRequest(tenant=tenant))


async def test_a_key_is_asked_for_here_too():
    async with exposed(echo, api_key=KEY) as url:
        interface = await interface_of(url, authorization=f"Bearer {KEY}")
        async with grpc.aio.insecure_channel(interface["url"]) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            send = message("hello")
            for metadata in (None, [("authorization", "Bearer another-key")], [("authorization", KEY)]):
                for call in (
                    stub.SendMessage(send, metadata=metadata),
                    stub.CancelTask(CancelTaskRequest(id="x"), metadata=metadata),
                    stub.SendStreamingMessage(send, metadata=metadata).read(),
                ):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            known = [("authorization", f"Bearer {KEY}")]
            assert len((await stub.ListTasks(ListTasksRequest(), metadata=known)).tasks) == 0
            answer = await stub.SendMessage(send, metadata=known)
            assert state_of(answer.task) == "COMPLETED"


async def test_another_version_and_a_message_over_the_limit_are_refused():
    async with exposed(echo) as url:
        async with grpc.aio.insecure_channel((await interface_of(url))["url"]) as channel:
            stub = a2a_pb2_grpc.A2AServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match=r"A2A version '0.3' is not supported"):
                await stub.ListTasks(ListTasksRequest(), metadata=[("a2a-version", "0.3")])
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.SendMessage(message("x" * 1_100_000))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert isinstance(await stub.ListTasks(ListTasksRequest()), a2a_pb2.ListTasksResponse)


async def test_a_port_that_is_taken_and_a_principal_of_your_own_are_errors_when_the_server_starts():
    async with exposed(echo) as url:
        port = int((await interface_of(url))["url"].rpartition(":")[2])
        over = Exposed({"echo": echo}, grpc=("127.0.0.1", port))
        async with stoppable.Supervisor() as supervisor:
            app = create_app(supervisor, [echo], routers=[over.router], services=[over.service])
            with pytest.raises(InvalidArgument, match="use another port"):
                async with app.router.lifespan_context(app):
                    pass

    def principal():
        return Principal(owner="ann")

    over = Exposed({"echo": echo}, grpc=("127.0.0.1", 0))
    async with stoppable.Supervisor() as supervisor:
        app = create_app(supervisor, [echo], routers=[over.router], services=[over.service], principal=principal)
        with pytest.raises(InvalidArgument, match="needs an HTTP request"):
            async with app.router.lifespan_context(app):
                pass


async def test_the_port_closes_with_the_server_and_streams_tell_the_end():
    async with contextlib.AsyncExitStack() as stack:
        served = await stack.enter_async_context(contextlib.AsyncExitStack())
        url = await served.enter_async_context(exposed(waiter))
        client = await stack.enter_async_context(client_of(url))
        address = (await interface_of(url))["url"]
        stream = Stream(client.send_message(message()))
        await stream.started()
        async with asyncio.timeout(SECONDS):
            await served.aclose()
        assert (await stream.ended())[-1] == "CANCELED"
    host, port = address.split(":")
    with pytest.raises(OSError):
        await asyncio.open_connection(host, int(port))


@pytest.mark.slow
async def test_stoppable_serve_ends_its_grpc_tasks_at_sigterm():
    environment = {**os.environ, "STEP_SECONDS": "60", "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED": "false"}
    command = [sys.executable, "-W", "ignore", "-m", "stoppable", "serve", "three_tasks_a2a", "--port", "0"]
    command += ["--a2a-grpc-port", "0"]
    server = subprocess.Popen(command, cwd=EXAMPLES, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        url = next(line.split()[1] for line in server.stderr if line.startswith("  at http"))
        rest = threading.Thread(target=server.stderr.read)  # a full pipe would hold the server up
        rest.start()
        async with client_of(url) as client:
            stream = Stream(client.send_message(message("A")))
            await stream.started()
            server.send_signal(signal.SIGTERM)
            assert (await stream.ended())[-1] == "CANCELED"
        assert await asyncio.to_thread(server.wait, SECONDS) == 0
        rest.join(SECONDS)
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
