"""Counts the files of src/stoppable that three flows pass: those in which a function is called on the way.

docs/architecture.md draws the flows. Each is followed several times and what was not called every time is left out:
timers, leases and loops that happened to be at work. ``python bench/flows.py`` prints the files, in the order of their
first call; it needs the extras server and client.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flow_agents
import passing
import stoppable
from stoppable.server import Service

SOURCE = str(Path(stoppable.__file__).parent) + "/"
TIMES = 5
DEADLINE = 30
CHILD = """\
import sys, threading
sys.path.insert(0, {here!r})
import passing
sys.path.remove({here!r})
passing.follow({source!r}, lambda name: open({passed!r}, "a").write(name + "\\n"))
"""

_passed: dict[str, None] | None = None


def _note(name: str) -> None:
    if _passed is not None:
        _passed.setdefault(name)


@contextlib.contextmanager
def following() -> Iterator[dict[str, None]]:
    global _passed
    _passed = passed = {}
    try:
        yield passed
    finally:
        _passed = None


@contextlib.contextmanager
def served() -> Iterator[Service]:
    listening = threading.Event()
    agents = [flow_agents.sleeps, flow_agents.enters_once]
    service = Service(agents, port=0, ready=lambda _: listening.set())
    thread = threading.Thread(target=service.run)
    thread.start()
    assert listening.wait(DEADLINE), "it does not listen"
    try:
        yield service
    finally:
        service.stop()
        thread.join(DEADLINE)


def _connect(service: Service) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=DEADLINE)


def _ask(service: Service, method: str, path: str, body: object = None) -> Any:
    connection = _connect(service)
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, {} if sent is None else {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def _follow(service: Service, run_id: str, until: str) -> http.client.HTTPResponse:
    connection = _connect(service)
    connection.request("GET", f"/runs/{run_id}/events")
    response = connection.getresponse()
    _read(response, until)
    return response


def _read(response: http.client.HTTPResponse, until: str) -> None:
    while response.readline().decode().strip() != until:
        pass


def stop_over_http(service: Service) -> dict[str, None]:
    """From the request to the receipt of a run that has ended."""
    run_id = _ask(service, "POST", "/runs", {"agent": "sleeps"})["id"]
    while _ask(service, "GET", f"/runs/{run_id}")["status"] != "running":
        pass
    with following() as passed:
        answer = _ask(service, "POST", f"/runs/{run_id}/stop?wait={DEADLINE}", {})
    assert answer["receipt"]["status"] == "stopped", answer
    return passed


def event_to_browser(service: Service) -> dict[str, None]:
    """From the boundary that is entered to the bytes on the connection."""
    flow_agents.go_on.clear()
    run_id = _ask(service, "POST", "/runs", {"agent": "enters_once"})["id"]
    with _follow(service, run_id, "event: status") as response:
        while not flow_agents.go_on:
            threading.Event().wait(0.01)
        loop, event = flow_agents.go_on[0]
        with following() as passed:
            loop.call_soon_threadsafe(event.set)
            _read(response, "event: entered")
    _ask(service, "POST", f"/runs/{run_id}/stop?wait={DEADLINE}", {"mode": "immediate"})
    return passed


def worker_process() -> dict[str, None]:
    """From the start of an agent in a process of its own to its result, in both processes."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "passed"
        Path(folder, "sitecustomize.py").write_text(
            CHILD.format(here=str(Path(__file__).parent), source=SOURCE, passed=str(there))
        )
        sys.path.insert(0, folder)

        async def run() -> None:
            handle = await stoppable.spawn(flow_agents.returns, isolation="process")
            assert await handle.result() == "done"

        try:
            with following() as passed:
                asyncio.run(run())
        finally:
            sys.path.remove(folder)
        return passed | dict.fromkeys(there.read_text().split())


def each_time(flow: Callable[[], dict[str, None]]) -> list[str]:
    """Return what a flow passes every time that it is followed."""
    found = [flow() for _ in range(TIMES)]
    return [name for name in found[0] if all(name in other for other in found[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true", help="print the numbers alone")
    options = parser.parse_args()
    passing.follow(SOURCE, _note)
    with served() as service:
        flows = {
            "a stop over HTTP": each_time(lambda: stop_over_http(service)),
            "a boundary's event to a browser": each_time(lambda: event_to_browser(service)),
        }
    flows["an agent process"] = each_time(worker_process)
    for name, files in flows.items():
        print(f"{name}: {len(files)} files")
        if not options.count:
            print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    main()
