"""Four workers of one server: a stop may arrive at any of them, and reaches the one that executes the run."""

import asyncio
import contextlib
import json
import socket
import sqlite3
from pathlib import Path

import httpx
import pytest

from .processes import process
from .world import DEADLINE

HERE = Path(__file__).parent
WORKERS, STOPS, AT_ONCE = 4, 60, 8


async def stopped(url, number, pids):
    """Start a run in a session of its own, stop it over another connection, and return what the stop answered."""
    session = f"s{number}"
    async with (
        httpx.AsyncClient(base_url=url, timeout=2 * DEADLINE, verify=False) as starting,
        httpx.AsyncClient(base_url=url, timeout=2 * DEADLINE, verify=False) as stopping,
    ):
        pids.add((await stopping.get("/pid")).json())
        made = await starting.post("/apps/hanging/users/ann/sessions", json={"sessionId": session})
        assert made.status_code == 200, made.text
        names = {"appName": "hanging", "userId": "ann", "sessionId": session}
        message = {"role": "user", "parts": [{"text": "go"}]}
        async with starting.stream("POST", "/run_sse", json={**names, "newMessage": message}) as response:
            lines = (line async for line in response.aiter_lines() if line)
            assert "functionCall" in await anext(lines)
            path = f"/apps/hanging/users/ann/sessions/{session}:cancel"
            answer = await stopping.post(path, params={"mode": "immediate", "wait": DEADLINE})
            last = [json.loads(line.removeprefix("data: ")) async for line in lines][-1]
        assert last["errorCode"] == "INVOCATION_ABORTED"
        assert response.headers["stoppable-run-id"] == answer.json()["runId"]
        return answer.status_code, answer.json()["status"]


@pytest.mark.timeout(300)  # four servers and many requests: on a busy machine that takes long
async def test_every_stop_reaches_the_worker_that_executes_the_run(warm, tmp_path):
    # In this mode readers and writers do not wait for each other, and the file keeps it.
    with contextlib.closing(sqlite3.connect(tmp_path / "sessions.db")) as sessions:
        sessions.execute("PRAGMA journal_mode=WAL")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=128))
        url = "http://{}:{}".format(*listener.getsockname())
        workers = [
            stack.enter_context(process("-m", "workers_app", cwd=HERE, listener=listener, FOLDER=str(tmp_path)))
            for _ in range(WORKERS)
        ]
        for worker in workers:
            worker.hear("Application startup complete")
        gate, pids = asyncio.Semaphore(AT_ONCE), set()

        async def one(number):
            async with gate:
                return await stopped(url, number, pids)

        answers = await asyncio.gather(*(one(number) for number in range(STOPS)))
    assert answers == [(200, "stopped")] * STOPS
    assert len(pids) > 1, "all stops arrived at one worker: nothing was shown"
