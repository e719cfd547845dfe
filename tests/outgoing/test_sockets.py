"""Connections outside every boundary are named in the receipt, with the line of the agent that made them."""

import asyncio
import contextlib
import socket
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.waiting import until

import stoppable

HERE = Path(__file__).name


@pytest.fixture
def port():
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def connect(port):
    with socket.create_connection(("127.0.0.1", port), 10):
        pass


async def receipt_of(agent, *args, **options):
    """Start an agent, stop it once it waits, and return the receipt."""
    handle = await stoppable.spawn(agent, *args, **options)
    await until(lambda: "tool:wait" in handle.run.in_flight, 30)
    await handle.stop("immediate")
    await handle.outcome()
    return handle.run.receipt


async def wait():
    with stoppable.boundary("tool", "wait"):
        await asyncio.sleep(3600)


def line_of(function, text):
    """Return ``file:line in function`` of the line that contains a text."""
    first = function.__code__.co_firstlineno
    lines = Path(__file__).read_text().splitlines()
    number = next(number for number, line in enumerate(lines[first - 1 :], first) if text in line)
    return f"{HERE}:{number} in {function.__name__}"


async def test_a_plain_connection_is_named_with_the_line_that_made_it(port):
    async def agent():
        connect(port)
        await wait()

    receipt = await receipt_of(agent)
    place = line_of(connect, "create_connection")
    assert receipt.unguarded == (f"127.0.0.1:{port} from {place}, inside socket.create_connection",)


async def test_one_of_asyncio_is_named_too(port):
    async def agent():
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await wait()

    (connection,) = (await receipt_of(agent)).unguarded
    assert f"127.0.0.1:{port} from {line_of(agent, 'open_connection')}" in connection


async def test_one_that_a_thread_makes_is_named_too(port):
    async def agent():
        thread = threading.Thread(target=connect, args=(port,))
        thread.start()
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(connect, port)
        await wait()

    assert len((await receipt_of(agent)).unguarded) == 1  # the same line, twice


async def test_one_that_is_refused_is_named_as_well():
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]

    async def agent():
        with socket.socket() as sock:
            sock.connect_ex(("127.0.0.1", free))
        await wait()

    (connection,) = (await receipt_of(agent)).unguarded
    assert connection == f"127.0.0.1:{free} from {line_of(agent, 'connect_ex')}"


async def test_a_boundary_around_it_is_enough(port):
    async def agent():
        with stoppable.boundary("tool", "mail"):
            connect(port)
        await wait()

    assert (await receipt_of(agent)).unguarded == ()


async def test_requests_of_a_client_are_boundaries_themselves(providers):
    stoppable.instrument(spare=["localhost"])

    async def agent():
        async with httpx.AsyncClient() as client:
            await client.get(providers.url)
            await client.get(providers.url.replace("127.0.0.1", "localhost"))  # spared, and meant to be
        with httpx.Client() as client:
            client.get(providers.url.replace("127.0.0.1", "localhost"))
        await wait()

    assert (await receipt_of(agent)).unguarded == ()


async def test_those_of_a_child_are_in_the_receipts_of_its_ancestors(port):
    async def child():
        connect(port)

    async def agent():
        await stoppable.call(child)
        await wait()

    assert len((await receipt_of(agent)).unguarded) == 1


async def test_at_most_twenty_are_named(port):
    async def agent():
        for number in range(30):
            exec(f"\n{chr(10) * number}connect({port})", {"connect": connect})
            with socket.socket() as sock, contextlib.suppress(OSError):
                sock.connect((f"127.0.0.{number + 1}", port))
        await wait()

    assert len((await receipt_of(agent)).unguarded) == 20


async def test_those_of_an_agent_process_are_told(port):
    receipt = await receipt_of(connects_and_waits, port, isolation="process")
    assert [connection.partition(" ")[0] for connection in receipt.unguarded] == [f"127.0.0.1:{port}"]


async def connects_and_waits(port):
    stoppable.instrument()
    connect(port)
    await wait()


async def test_sockets_of_the_machine_are_not(tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        async def agent():
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(path)
            await wait()

        assert (await receipt_of(agent)).unguarded == ()


def test_other_code_may_patch_sockets_before_and_take_that_away_before(monkeypatch):
    stoppable.uninstrument()
    monkeypatch.setattr(socket.socket, "connect", lambda *_: None)
    stoppable.instrument()
    monkeypatch.undo()
    assert "connect" not in vars(socket.socket)
    stoppable.instrument()
    assert "connect" in vars(socket.socket)
    monkeypatch.delattr(socket.socket, "connect")
    stoppable.uninstrument()
    monkeypatch.undo()
    del socket.socket.connect


def test_nothing_is_left_of_it():
    stoppable.uninstrument()
    assert "connect" not in vars(socket.socket)
    assert sys.modules["socket"].socket.connect is socket.SocketType.connect
