"""A plain HTTP/1.1 connection: the client must cost little, since it shares the machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        self._send(method, path, body)
        head = await self._head()
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
        if length is not None:
            return await self._reader.readexactly(int(length.split(b":")[1]))
        return await self.rest()

    async def rest(self) -> bytes:
        """Return what a response has left."""
        received = b""
        while chunk := await self._chunk():
            received += chunk
        return received

    async def chunks(self, method: str, path: str) -> AsyncIterator[bytes]:
        """Yield the pieces of a response as they come."""
        self._send(method, path, None)
        await self._head()
        while chunk := await self._chunk():
            yield chunk

    async def follow(self, method: str, path: str, body: object = None, until: bytes = b"") -> bytes:
        """Open a stream, read until something was told, and leave it at that."""
        self._send(method, path, body)
        await self._head()
        received = b""
        while until not in received:
            received += await self._chunk()
        return received

    async def until(self, *wanted: bytes) -> None:
        """Read on in a stream until one event has all of these."""
        received = b""
        while not any(all(one in event for one in wanted) for event in received.split(b"\n\n")):
            received = received.rpartition(b"\n\n")[2] + await self._chunk()

    def close(self) -> None:
        self._writer.transport.abort()

    def _send(self, method: str, path: str, body: object) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\nA2A-Version: 1.0\r\n" if content else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)

    async def _head(self) -> bytes:
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.split()[1].startswith(b"2"), head
        return head

    async def _chunk(self) -> bytes:
        """Return a piece of a response; nothing at its end."""
        size = int(await self._reader.readline(), 16)
        return (await self._reader.readexactly(size + 2))[:-2]


async def usage(port: int) -> tuple[int, int]:
    """Return the CPU time of a server in nanoseconds and its memory in bytes."""
    connection = await Connection.open(port)
    cpu, resident = (await connection.ask("GET", "/usage")).split()
    connection.close()
    return int(cpu), int(resident)
