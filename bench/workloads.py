"""The same three things, asked of each server in its own words: events of a live run, a run that waits, its stop."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from typing import ClassVar, Protocol

from connection import Connection

_ids = itertools.count(1)


class Workload(Protocol):
    """What a server is asked to do."""

    name: str

    async def events(self, connection: Connection, count: int) -> bytes:
        """Start a run that tells so many events, one each millisecond, and read them to its end."""

    async def waiting(self, connection: Connection) -> str:
        """Start a run that waits, leave its stream open, and return its id."""

    async def stop(self, connection: Connection, run_id: str) -> None:
        """Stop a run that waits."""


class Stoppable:
    name = "stoppable"
    STOP: ClassVar = {"mode": "cooperative", "reason": "enough"}

    async def started(self, connection: Connection, agent: str, given: object = None) -> str:
        body = {"agent": agent} if given is None else {"agent": agent, "input": given}
        return json.loads(await connection.ask("POST", "/runs", body))["id"]

    async def events(self, connection: Connection, count: int) -> bytes:
        run_id = await self.started(connection, "pacer", count)
        return await connection.ask("GET", f"/runs/{run_id}/events")

    async def spoken(self, connection: Connection, count: int, at: float) -> AsyncIterator[bytes]:
        """Start a run that says so many tokens from a time on, fifty a second, and yield what comes of it."""
        run_id = await self.started(connection, "speaker", {"events": count, "at": at})
        async for chunk in connection.chunks("GET", f"/runs/{run_id}/events"):
            yield chunk

    async def unfollowed(self, connection: Connection) -> str:
        run_id = await self.started(connection, "waiter")
        connection.close()
        return run_id

    async def waiting(self, connection: Connection) -> str:
        run_id = await self.started(connection, "waiter")
        await connection.follow("GET", f"/runs/{run_id}/events", until=b'"running"')
        return run_id

    async def page(self, connection: Connection) -> None:
        """Follow all runs, as a page does that shows them."""
        await connection.follow("GET", "/events", until=b'"all":true')

    async def stop(self, connection: Connection, run_id: str) -> None:
        await connection.ask("POST", f"/runs/{run_id}/stop", self.STOP)


class Floor:
    """No run at all: what a response costs that is streamed."""

    name = "a StreamingResponse with orjson, no run (floor)"

    async def events(self, connection: Connection, count: int) -> bytes:
        return await connection.ask("GET", f"/floor/live?count={count}")

    def spoken(self, connection: Connection, count: int, at: float) -> AsyncIterator[bytes]:
        return connection.chunks("GET", f"/floor/spoken?count={count}&at={at}")

    async def waiting(self, connection: Connection) -> str:
        await connection.follow("GET", "/floor/waiting", until=b":")
        return ""

    async def stop(self, connection: Connection, run_id: str) -> None:
        raise NotImplementedError


class A2a:
    name = "a2a-sdk"

    async def events(self, connection: Connection, count: int) -> bytes:
        return await connection.ask("POST", "/rpc", self._message(count))

    async def waiting(self, connection: Connection) -> str:
        told = await connection.follow("POST", "/rpc", self._message(0), until=b"TASK_STATE_WORKING")
        return json.loads(told.split(b"\r\n")[0].removeprefix(b"data: "))["result"]["task"]["id"]

    async def stop(self, connection: Connection, run_id: str) -> None:
        told = await connection.ask("POST", "/rpc", _call("CancelTask", {"id": run_id}))
        assert b"TASK_STATE_CANCELED" in told, told

    def _message(self, count: int) -> object:
        message = {"messageId": f"m{next(_ids)}", "role": "ROLE_USER", "parts": [{"text": str(count)}]}
        return _call("SendStreamingMessage", {"message": message})


class Adk:
    name = "google-adk"

    async def events(self, connection: Connection, count: int) -> bytes:
        return await connection.ask("POST", "/run_sse", self._message(count))

    async def waiting(self, connection: Connection) -> str:
        await connection.follow("POST", "/run_sse", self._message(0), until=b"a few words")
        return ""

    async def stop(self, connection: Connection, run_id: str) -> None:
        raise NotImplementedError

    def _message(self, count: int) -> object:
        message = {"role": "user", "parts": [{"text": str(count)}]}
        session = f"s{next(_ids)}"
        return {"appName": "bench", "userId": "u", "sessionId": session, "newMessage": message, "streaming": True}


def _call(method: str, params: object) -> object:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def raw(connection: Connection) -> None:
    """Open a response that waits, of a server without a framework."""
    await connection.follow("GET", "/", until=b":")
