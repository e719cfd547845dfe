"""The 0.1 dialect over a socket, spelled as its clients spell it."""

import asyncio
import json

from .serving import SECONDS


async def post(url, body, *, headers=(), path="/"):
    """Send a request and return the reader of its response, past the headers, with the status and the headers."""
    host, port = url.removeprefix("http://").split(":")
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *headers,
    ]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
    await writer.drain()
    async with asyncio.timeout(SECONDS):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return reader, writer, int(head.split()[1]), head.lower()


async def call(url, method, params, **more):
    """Return the answer to a call."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reader, writer, status, _ = await post(url, body, **more)
    async with asyncio.timeout(SECONDS):
        rest = await reader.read()
    writer.close()
    assert status == 200, (status, rest)
    return json.loads(rest)


class Subscription:
    """A stream of events, read from the socket until the server closes it."""

    def __init__(self, url, task_id, text, method="tasks/sendSubscribe"):
        message = {"role": "user", "parts": [{"type": "text", "text": text}]}
        self.params = {"id": task_id, "message": message}
        self.url, self.method, self.events, self.raw = url, method, [], b""
        self.news = asyncio.Condition()
        self.task = asyncio.create_task(self._read())

    async def _read(self):
        body = {"jsonrpc": "2.0", "id": 1, "method": self.method, "params": self.params}
        reader, writer, status, head = await post(self.url, body)
        assert status == 200
        assert "content-type: text/event-stream" in head
        rest, chunked = b"", "transfer-encoding: chunked" in head
        while True:
            if chunked:
                size = int((await reader.readline()).strip() or b"0", 16)
                if size == 0:
                    break
                rest += await reader.readexactly(size)
                await reader.readexactly(2)
            elif piece := await reader.read(1000):
                rest += piece
            else:
                break
            self.raw += rest
            *frames, rest = rest.split(b"\n\n")  # as the client splits: CRLF never matches
            async with self.news:
                self.events += [json.loads(frame.removeprefix(b"data: "))["result"] for frame in frames if frame]
                self.news.notify_all()
        writer.close()

    async def heard(self, wanted):
        async with asyncio.timeout(SECONDS), self.news:
            await self.news.wait_for(lambda: any(wanted(event) for event in self.events))

    async def closed(self):
        async with asyncio.timeout(SECONDS):
            await self.task
        return self.events
