"""Counts the files of src/stoppable that three flows pass, and the moves from one file to another.

docs/architecture.md draws the flows. Each is followed several times and what was not called every time is left out:
timers, leases and loops that happened to be at work. ``python bench/flows.py`` prints the files, in the order of their
first call; it needs the extras server and client. ``--beside COMMIT`` counts the same in an earlier commit, with its
modules and lines, and writes bench/results/flows.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
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

MOVES = """\
Moves are counted on all threads, and vary by some with what else is at work. Wanted were at most 28 files and 170 moves
of a stop, 14 and 40 of an event, 24 files of an agent process, and a tenth fewer lines. What there is beyond that:

- Each call of the store is four moves (queue, future, store, reply), because a store answers on a thread of its own
  ([decision 0007](../../docs/decisions/0007-a-store-returns-a-future.md)). A stop makes four such calls, an event
  three. A fifth of the moves of a stop are between the store and the rules and
  records that all stores share.
- Eight of the files of an agent process are `instrument()`: one for each kind of what it replaces.
- The overloads of `spawn`, `call` and `start` stay: their other keywords are the agent's, which no TypedDict can say.
"""


@dataclass
class Passage:
    """The files that a flow passes, and how often it moves from one to another."""

    files: dict[str, None] = field(default_factory=dict)
    moves: int = 0
    last: dict[int, str] = field(default_factory=dict)
    """The file of the last call, by thread."""

    def note(self, name: str) -> None:
        self.files.setdefault(name)
        thread = threading.get_ident()
        if self.last.get(thread) != name:
            self.moves += 1
            self.last[thread] = name


_passage: Passage | None = None


def _note(name: str) -> None:
    if _passage is not None:
        _passage.note(name)


@contextlib.contextmanager
def following() -> Iterator[Passage]:
    global _passage
    _passage = passage = Passage()
    try:
        yield passage
    finally:
        _passage = None


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


def stop_over_http(service: Service) -> Passage:
    """From the request to the receipt of a run that has ended."""
    run_id = _ask(service, "POST", "/runs", {"agent": "sleeps"})["id"]
    while _ask(service, "GET", f"/runs/{run_id}")["status"] != "running":
        pass
    with following() as passage:
        answer = _ask(service, "POST", f"/runs/{run_id}/stop?wait={DEADLINE}", {})
    assert answer["receipt"]["status"] == "stopped", answer
    return passage


def event_to_browser(service: Service) -> Passage:
    """From the boundary that is entered to the bytes on the connection."""
    flow_agents.go_on.clear()
    run_id = _ask(service, "POST", "/runs", {"agent": "enters_once"})["id"]
    with _follow(service, run_id, "event: status") as response:
        while not flow_agents.go_on:
            threading.Event().wait(0.01)
        loop, event = flow_agents.go_on[0]
        with following() as passage:
            loop.call_soon_threadsafe(event.set)
            _read(response, "event: entered")
    _ask(service, "POST", f"/runs/{run_id}/stop?wait={DEADLINE}", {"mode": "immediate"})
    return passage


def worker_process() -> Passage:
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
            with following() as passage:
                asyncio.run(run())
        finally:
            sys.path.remove(folder)
        there_too = there.read_text().split()
        passage.files |= dict.fromkeys(there_too)
        passage.moves += sum(one != other for one, other in itertools.pairwise(there_too))
        return passage


def each_time(flow: Callable[[], Passage]) -> tuple[list[str], int]:
    """Return the files that a flow passes every time that it is followed, and the fewest moves between files."""
    passages = [flow() for _ in range(TIMES)]
    files = [name for name in passages[0].files if all(name in other.files for other in passages[1:])]
    return files, min(passage.moves for passage in passages)


def count() -> dict[str, tuple[list[str], int]]:
    """Return the files and the number of moves of each flow."""
    passing.follow(SOURCE, _note)
    with served() as service:
        flows = {
            "a stop over HTTP": each_time(lambda: stop_over_http(service)),
            "a boundary's event to a browser": each_time(lambda: event_to_browser(service)),
        }
    flows["an agent process"] = each_time(worker_process)
    return flows


def summary() -> dict[str, str]:
    """Return what the table says of the source here."""
    counts = {name: f"{len(files)} files, {moves} moves" for name, (files, moves) in count().items()}
    return counts | size()


def size(without: Collection[Path] = ()) -> dict[str, str]:
    """Return the number of modules and lines of the source here, without those in some folders."""
    modules = [
        path
        for path in Path(SOURCE).rglob("*.py")
        if "_sync" not in path.parts  # those are made from others
        and not any(folder in path.parents for folder in without)
    ]
    lines = sum(len(path.read_text().splitlines()) for path in modules)
    return {"modules": str(len(modules)), "lines": str(lines)}


def beside(commit: str) -> None:
    """Print the table of an earlier commit and of the source here, and write it."""
    with tempfile.TemporaryDirectory() as place:
        git = ["git", "-C", str(Path(__file__).parent.parent)]
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", place, commit], check=True)
        try:
            ask = [sys.executable, __file__, "--summary"]
            path = os.pathsep.join([f"{place}/src", *filter(None, [os.environ.get("PYTHONPATH")])])
            done = subprocess.run(
                ask,
                env=os.environ | {"PYTHONPATH": path},
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            adapters = Path(SOURCE, "adapters")
            later = [
                each for each in adapters.iterdir() if not Path(place, "src/stoppable/adapters", each.name).exists()
            ]
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", place], check=True)
    before, now = json.loads(done.stdout), summary()
    for name, number in size(later).items():
        before[f"{name} but for later adapters"] = before[name]
        now[f"{name} but for later adapters"] = number
    rows = "".join(f"| {name} | {before[name]} | {now[name]} |\n" for name in now)
    text = f"# The files that three flows pass\n\nWritten by `python bench/flows.py --beside {commit}`.\n\n"
    text += f"| | {commit} | now |\n|---|---|---|\n{rows}\n{MOVES}"
    print(text)
    Path(__file__).with_name("results").joinpath("flows.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--summary", action="store_true", help="print the numbers alone, as JSON")
    parser.add_argument("--beside", metavar="COMMIT", help="compare with an earlier commit")
    options = parser.parse_args()
    if options.beside:
        beside(options.beside)
    elif options.summary:
        print(json.dumps(summary()))
    else:
        for name, (files, moves) in count().items():
            print(f"{name}: {len(files)} files, {moves} moves between them")
            print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    main()
