"""A real server on a socket, and a client that sees every byte."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from stoppable.server import Service

DEADLINE = 30


@contextmanager
def served(agents, *, protocol=None, **options):
    """Serve agents on a free port, on a thread, until the block is left; ``protocol`` is one of uvicorn's own."""
    listening = threading.Event()
    service = Service(agents, port=0, ready=lambda _: listening.set(), **options)
    if protocol is not None:
        service._server.config.http = protocol
    thread = threading.Thread(target=service.run, name="server")
    thread.start()
    assert listening.wait(DEADLINE), "it does not listen"
    try:
        yield service
    finally:
        service.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the server did not end"


class ServerProcess:
    """A server in a process of its own."""

    def __init__(self, process, url):
        self.process, self.url = process, url
        self.log = []

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """Return its exit code and what it logged."""
        _, log = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, log


@contextmanager
def in_process(name, **options):
    """Serve the agents of a module of ``served_agents`` in a process of its own."""
    script = Path(__file__).parent / "served_agents" / f"{name}.py"
    process = subprocess.Popen(
        [sys.executable, script, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        assert url, process.stderr.read()
        yield ServerProcess(process, url)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE)


@asynccontextmanager
async def client_of(service, **options):
    async with httpx.AsyncClient(base_url=service.url, timeout=DEADLINE, **options) as client:
        yield client


async def asked_for(client, agent, arguments=None, **more):
    """Start a run and return its id."""
    body = {"agent": agent, **more}
    if arguments is not None:
        body["input"] = arguments
    response = await client.post("/runs", json=body)
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def started(client, agent, arguments=None, **more):
    """Start a run and return its id, once it has begun."""
    run_id = await asked_for(client, agent, arguments, **more)
    async with asyncio.timeout(DEADLINE):
        while (await client.get(f"/runs/{run_id}")).json()["status"] == "pending":
            await asyncio.sleep(0.005)
    return run_id


async def over(client, run_id):
    """Wait for the end of a run without following it, and return its record."""
    async with asyncio.timeout(DEADLINE):
        while not (record := (await client.get(f"/runs/{run_id}")).json())["endedAt"]:
            await asyncio.sleep(0.005)
    return record


async def ended(client, run_id):
    """Wait for the end of a run and return its record."""
    async for _ in events(client, run_id):
        pass
    return (await client.get(f"/runs/{run_id}")).json()


async def events(client, run_id, after=0, headers=None):
    async with client.stream("GET", f"/runs/{run_id}/events", params={"after": after}, headers=headers) as response:
        assert response.status_code in {200, 204}, await response.aread()
        async for event in parsed(response.aiter_lines()):
            yield event


async def parsed(lines):
    """Yield events as a browser would: an event counts once its empty line has come."""
    event = {}
    async for line in lines:
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = json.loads(value) if name == "data" else value


async def event(client, run_id, type_, after=0, **data):
    """Wait for an event of a type whose data has these."""
    async with asyncio.timeout(DEADLINE):
        async for found in events(client, run_id, after):
            told = found["data"]["data"]
            if found["event"] == type_ and all(told.get(key) == value for key, value in data.items()):
                return found
    raise AssertionError(f"no {type_} {data}")


class RawStream:
    """A stream of events over a plain socket: it reads when it is told to, and drops the connection when told to."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, service, limit=2**16, receive_buffer=None):
        host, port = service.url.removeprefix("http://").split(":")
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        return cls(*await asyncio.open_connection(limit=limit, sock=sock))

    @classmethod
    async def open(cls, service, run_id, after=0, behind=b"", headers=(), path=None, **options):
        """Ask for the events of a run, or of another path, with ``behind`` sent at once behind the request."""
        stream = await cls.connect(service, **options)
        fields = {"Host": "localhost", "Last-Event-ID": after, **dict(headers)}
        path = path or f"/runs/{run_id}/events"
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        head = "\r\n".join([*lines, "", ""])
        stream.write(head.encode() + behind)
        status = await stream._reader.readline()
        assert b" 200 " in status, status
        while (await stream._reader.readline()).strip():
            pass
        return stream

    def write(self, data):
        self._writer.write(data)

    async def rest(self):
        """Return what comes until the connection is closed, by its end or not."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""

    async def lines(self):
        """Yield the lines of the body until it ends, whether it is complete or not."""
        text = b""
        while True:
            size = await self._reader.readline()
            if not size.strip():
                return
            count = int(size, 16)
            if not count:
                return
            try:
                text += (await self._reader.readexactly(count + 2))[:-2]
            except asyncio.IncompleteReadError:
                return
            *whole, text = text.split(b"\n")
            for line in whole:
                yield line.decode()

    def events(self):
        return parsed(self.lines())

    async def drop(self):
        self._writer.transport.abort()

    async def close(self):
        self._writer.close()
        await self._writer.wait_closed()
