"""Measures the server: CPU time per operation and memory per stream, beside floors in the same process.

A real uvicorn in a process of its own, driven over a socket; what counts is the CPU time of that process. Contenders
take turns and the best of the rounds counts. A full run writes bench/results/server.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from machine import facts
from table import Row, Section, Target, against, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "server.md"
METHOD = "Written by `make bench`. CPU time of the server's process per operation: the best of interleaved rounds."
PACKAGES = ("stoppable", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "orjson")


class Connection:
    """A plain HTTP/1.1 connection: the client must cost little, since it shares the machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**20))

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        self.send(method, path, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
        if length is not None:
            return await self._reader.readexactly(int(length.split(b":")[1]))
        received = b""
        while (size := int(await self._reader.readline(), 16)) > 0:
            received += (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()
        return received

    async def follow(self, path: str) -> None:
        """Open a stream, and leave it at that."""
        self.send("GET", path)
        await self._reader.readuntil(b"\r\n\r\n")

    def send(self, method: str, path: str, body: object = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        kind = "Content-Type: application/json\r\n" if content else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}Content-Length: {len(content)}\r\n\r\n"
        self._writer.write(head.encode() + content)

    async def started(self, agent: str, arguments: object = None) -> str:
        body = {"agent": agent} if arguments is None else {"agent": agent, "input": arguments}
        return json.loads(await self.ask("POST", "/runs", body))["id"]

    async def usage(self) -> tuple[int, int]:
        cpu, resident = (await self.ask("GET", "/usage")).split()
        return int(cpu), int(resident)

    def close(self) -> None:
        self._writer.transport.abort()


@contextmanager
def server() -> Iterator[int]:
    script = Path(__file__).parent / "server_under_test.py"
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def interleaved(
    control: Connection, rounds: int, contenders: dict[str, Callable[[], Awaitable[int]]]
) -> dict[str, float]:
    """Return the best nanoseconds of CPU per operation; each contender returns how many operations it did."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, act in contenders.items():
            before, _ = await control.usage()
            count = await act()
            after, _ = await control.usage()
            best[name] = min(best[name], (after - before) / count)
    return best


async def streams(port: int, quick: bool) -> Section:
    control = await Connection.open(port)
    count = 2_000 if quick else 9_000
    run_id = await control.started("talker", count)
    replayed = (await control.ask("GET", f"/runs/{run_id}/events")).count(b"\n\n")

    async def ours() -> int:
        for _ in range(5):
            await control.ask("GET", f"/runs/{run_id}/events")
        return 5 * replayed

    async def floor() -> int:
        for _ in range(5):
            await control.ask("GET", f"/floor/events?count={replayed}")
        return 5 * replayed

    names = {"a drained StreamingResponse with orjson (floor)": floor, "GET /runs/{id}/events": ours}
    found = await interleaved(control, 3 if quick else 15, names)
    control.close()
    base, mine = (found[name] / 1000 for name in names)
    rows = [
        against(base, "a drained StreamingResponse with orjson (floor)", base, unit="µs"),
        against(base, "GET /runs/{id}/events", mine, unit="µs", target=Target(limit=2)),
    ]
    return Section(title="One event to one reader", rows=rows, notes=[f"{replayed:,} events, replayed"])


async def stops(port: int, quick: bool) -> Section:
    control = await Connection.open(port)
    count = 100 if quick else 500
    run_id = await control.started("deaf")
    body = {"mode": "cooperative", "reason": "enough"}

    async def ours() -> int:
        for _ in range(count):
            await control.ask("POST", f"/runs/{run_id}/stop", body)
        return count

    async def floor() -> int:
        for _ in range(count):
            await control.ask("POST", f"/floor/{run_id}/stop", body)
        return count

    found = await interleaved(control, 3 if quick else 15, {"floor": floor, "ours": ours})
    alive = [await control.started("waiter") for _ in range(count)]
    before, _ = await control.usage()
    for one in alive:
        await control.ask("POST", f"/runs/{one}/stop", body)
    after, _ = await control.usage()
    control.close()
    base = found["floor"] / 1000
    rows = [
        against(base, "a FastAPI POST with models and the write to the store (floor)", base, unit="µs"),
        against(base, "POST /runs/{id}/stop, in memory", found["ours"] / 1000, unit="µs", target=Target(limit=1.5)),
        Row(name="the same of a live run, with its end", value=(after - before) / count / 1000, unit="µs"),
    ]
    return Section(title="One stop", rows=rows)


async def memory(port: int, quick: bool) -> Section:
    control = await Connection.open(port)
    warm, count = 100, 300 if quick else 2_000
    followed = []

    async def follow(many: int) -> None:
        for _ in range(many):
            run_id = await control.started("waiter")
            stream = await Connection.open(port)
            await stream.follow(f"/runs/{run_id}/events")
            followed.append(stream)

    await follow(warm)
    _, before = await control.usage()
    await follow(count)
    _, after = await control.usage()
    for stream in followed:
        stream.close()
    control.close()
    row = Row(
        name="a live run with one reader",
        value=(after - before) / count / 1000,
        unit="kB",
        target=Target(limit=12, absolute=True),
    )
    return Section(title="Memory", rows=[row], notes=[f"resident, of {count:,}"])


async def measured(quick: bool) -> list[Section]:
    sections = []
    for part in (streams, stops, memory):
        with server() as port:  # a fresh one for each, so that none measures what another left behind
            sections.append(await part(port, quick))
        print(as_text(sections[-1]))
    return sections


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rough look; writes nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = facts(PACKAGES)
    sections = asyncio.run(measured(options.quick))
    last_line = summary("server", sections)
    print(json.dumps(as_json(known, sections, last_line)) if options.json else f"\n{last_line}")
    if not options.quick:
        write(RESULTS, as_markdown("The server, measured", METHOD, known, sections, last_line))


if __name__ == "__main__":
    main()
