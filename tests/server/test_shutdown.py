"""A server that is told to end stops its runs, tells its streams, and is gone in time."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from stoppable import InvalidArgument
from stoppable._extras import pip_install
from stoppable.errors import StoreError
from stoppable.server import Service
from stoppable.stores.memory import MemoryStore

from .serving import DEADLINE, RawStream, client_of, event, in_process, started


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_under_load_stops_every_run_and_ends_every_stream(tmp_path, number):
    notes = tmp_path / "notes"
    with in_process("busy", notes=str(notes)) as service:
        async with client_of(service) as client:
            runs = [await started(client, "polite", {"n": n}) for n in range(20)]
            runs.append(await started(client, "blocking"))
            streams = [await RawStream.open(service, run_id) for run_id in runs]
            is_over = False

            async def load():
                answers = []
                with contextlib.suppress(httpx.HTTPError):
                    while not is_over:
                        answers.append((await client.post("/runs", json={"agent": "polite", "input": -1})).status_code)
                return answers

            async def last_of(stream):
                return [one async for one in stream.events()][-1]

            loading = [asyncio.create_task(load()) for _ in range(4)]
            reading = [asyncio.create_task(last_of(stream)) for stream in streams]
            await event(client, runs[0], "progress")
            service.signal(number)
            async with asyncio.timeout(DEADLINE):
                lasts = await asyncio.gather(*reading)
            is_over = True
            for last in lasts:
                assert last["event"] == "done", "the streams see the end of their run"
                assert last["data"]["data"] == {"status": "stopped", "clean": True}
            answers = [code for task in loading for code in await task]
            assert set(answers) <= {201, 503}, "a start is taken or refused, never lost"
            code, log = await asyncio.to_thread(service.wait)
            assert code == 0, log
            await asyncio.gather(*(stream.close() for stream in streams))
    told = notes.read_text().splitlines()
    assert {f"cleaned up {n}" for n in range(20)} <= set(told)
    assert (told[0], told[-2:]) == ("entered", ["left", "returned"])
    assert "Traceback" not in log


async def test_pressing_again_stops_harder(tmp_path):
    with in_process("busy", notes=str(tmp_path / "notes")) as service:
        async with client_of(service) as client:
            run_id = await started(client, "stubborn", policy={"grace": 300})  # only the third press ends it in time
            await event(client, run_id, "entered")
            await client.get(f"/runs/{run_id}")  # over a connection that is kept: no other is accepted from now on
            for mode in ("graceful", "immediate", "kill"):
                service.signal(signal.SIGTERM)
                async with asyncio.timeout(DEADLINE):
                    while ((await client.get(f"/runs/{run_id}")).json()["stop"] or {}).get("mode") != mode:
                        pass
            code, log = await asyncio.to_thread(service.wait)
            assert code == 0, log


async def test_the_log_may_be_json(tmp_path):
    with in_process("busy", notes=str(tmp_path / "notes"), log_json=True) as service:
        async with client_of(service) as client:
            await client.get("/runs")
            await client.get("/nope")
        service.signal(signal.SIGTERM)
        code, log = await asyncio.to_thread(service.wait)
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines if "path" in line] == [
        ("GET", "/nope", 404),
    ], "what is only looked at has no line"


def test_a_port_that_is_taken_is_said_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        service = Service([], port=taken.getsockname()[1])
        with pytest.raises(InvalidArgument, match=r"cannot listen on 127\.0\.0\.1:"):
            service.run()


def test_what_goes_wrong_at_the_start_is_raised(capfd):
    class Refusing(MemoryStore):
        def open(self):
            raise StoreError("the disk is full: make room")

    with pytest.raises(StoreError, match="make room"):
        Service([], port=0, store=Refusing()).run()

    @contextlib.asynccontextmanager
    async def broken():
        raise LookupError("no database")
        yield

    with pytest.raises(LookupError, match="no database"):
        Service([], port=0, lifespan=broken).run()
    assert "Traceback" not in capfd.readouterr().err


def test_a_missing_extra_is_a_clear_error_at_use():
    code = """
import sys
sys.modules["fastapi"] = None
import stoppable
try:
    import stoppable.server
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"the server needs fastapi, which is not installed: {pip_install('server')}"
