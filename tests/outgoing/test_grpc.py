"""Calls of gRPC as boundaries, with threads and with asyncio."""

import asyncio

import grpc
import grpc.aio
import pytest
from tests.grpc_model import MANY, ONE, GrpcModel
from tests.waiting import until

import stoppable


@pytest.fixture
def service():
    with GrpcModel() as service:
        yield service


def call_once(target):
    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary(ONE)(b"")


def call_with_call(target):
    with grpc.insecure_channel(target) as channel:
        return channel.unary_unary(ONE).with_call(b"")[0]


def call_stream(target):
    with grpc.insecure_channel(target) as channel:
        return list(channel.unary_stream(MANY)(b""))


async def call_once_async(target):
    return await opened(target).unary_unary(ONE)(b"")


async def call_stream_async(target):
    return [answer async for answer in opened(target).unary_stream(MANY)(b"")]


async def read_stream_async(target):
    call, found = opened(target).unary_stream(MANY)(b""), []
    while (answer := await call.read()) is not grpc.aio.EOF:
        found.append(answer)
    return found


@pytest.fixture(scope="module", autouse=True)
def poller():
    """Keep gRPC's own thread for the whole module: it ends at some time after the last call."""

    async def begin():  # it asks for an event loop
        grpc.aio.init_grpc_aio()

    asyncio.run(begin())
    yield
    grpc.aio.shutdown_grpc_aio()


channels = []


def opened(target):
    channels.append(grpc.aio.insecure_channel(target))
    return channels[-1]


@pytest.fixture(autouse=True)
async def closed_channels():
    yield
    while channels:
        await channels.pop().close()


ONCE = [call_once, call_with_call, call_once_async]
STREAMS = [call_stream, call_stream_async, read_stream_async]


def agent_of(call, target):
    if asyncio.iscoroutinefunction(call):

        async def agent():
            return [await call(target), await call(target)]

        return agent
    return lambda: [call(target), call(target)]


@pytest.mark.parametrize("call", ONCE + STREAMS)
async def test_without_a_stop_the_answers_are_those_of_grpc(service, call):
    service.released.set()
    outcome = await (await stoppable.spawn(agent_of(call, service.target))).outcome()
    assert outcome.result == [b"done" if call in ONCE else [b"first", b"last"]] * 2


@pytest.mark.parametrize("call", ONCE)
async def test_a_call_in_flight_finishes_and_no_other_begins(service, call):
    handle = await stoppable.spawn(agent_of(call, service.target))
    await until(lambda: service.begun)
    receipt = await handle.stop()
    assert len(receipt.in_flight) == 1
    assert receipt.in_flight[0].endswith("llm.Model/Generate")
    service.released.set()
    outcome = await handle.outcome()
    assert (outcome.status, outcome.rung, len(service.begun)) == ("stopped", "signal", 1)


@pytest.mark.parametrize("mode", ["immediate", "kill"])
@pytest.mark.parametrize("call", ONCE + STREAMS)
async def test_force_ends_a_call_also_at_the_server(service, call, mode):
    handle = await stoppable.spawn(agent_of(call, service.target))
    await until(lambda: service.begun)
    await handle.stop(mode)
    outcome = await handle.outcome()
    assert (outcome.status, outcome.error, len(service.begun)) == ("stopped", None, 1)
    assert "abandoned" not in [str(node.fate) for node in handle.run.receipt.entries]
    await until(lambda: service.closed.acquire(blocking=False))


async def test_an_error_of_a_call_is_that_of_grpc(service):
    def agent():
        with grpc.insecure_channel(service.target) as channel:
            channel.unary_unary("/llm.Model/Generate")(b"", timeout=0.01)

    outcome = await (await stoppable.spawn(agent)).outcome()
    assert outcome.error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
