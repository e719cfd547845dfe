"""Thousands of malformed requests: none is answered with a 5xx, and none stops anything."""

import asyncio
import contextlib
import os
import random
from collections import Counter

import pytest

import stoppable
from stoppable.server import ServerLimits

from .malformed import Malformed
from .serving import client_of, event, served, started

COUNT = 5000
AT_ONCE = 25


async def sleeper():
    async with stoppable.boundary("tool", "sleep"):
        await stoppable.sleep(600)


async def status_of(service, request):
    """Send a request and return the status of its answer, or None if the connection was closed without one."""
    host, port = service.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        with contextlib.suppress(OSError):
            writer.write_eof()
        line = b""
        with contextlib.suppress(OSError):
            line = await reader.readline()
        if not line.startswith(b"HTTP/1.1 "):
            return None
        return int(line.split()[1])
    finally:
        writer.transport.abort()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_malformed_requests_break_nothing_and_stop_nobody():
    seed = int(os.environ.get("STOPPABLE_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"STOPPABLE_FUZZ_SEED={seed}")
    with served([sleeper], limits=ServerLimits(body_seconds=2, head_seconds=2)) as service:
        async with client_of(service) as client:
            victims = [await started(client, "sleeper") for _ in range(5)]
            for victim in victims:
                await event(client, victim, "entered")
            malformed = Malformed(seed, victims)
            requests = iter([malformed.next() for _ in range(COUNT)])
            answers = Counter()

            async def send():
                for request in requests:
                    async with asyncio.timeout(20):
                        status = await status_of(service, request)
                    answers[status] += 1
                    assert status is None or 200 <= status < 500, (status, request[:2000])

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(send())

            print(dict(answers))
            assert sum(answers.values()) == COUNT
            assert (await client.get("/healthz")).status_code == 200
            alive = (await client.get("/runs", params={"limit": 1000})).json()["runs"]
            assert {run["id"] for run in alive} == set(victims), "nothing was started"
            assert {run["status"] for run in alive} == {"running"}, "nothing was stopped"
            assert (await client.get("/holds")).json()["holds"] == []
            entries = (await client.get("/audit")).json()["entries"]
            assert not any(entry["result"].get("runs") for entry in entries)
