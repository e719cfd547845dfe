"""How long another replica waits for its appends and heartbeats while one stops very many runs."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from tests.fleet.postgres_server import PostgresServer

from fleet_sections.copies import make_copies
from scratch import folder
from stoppable.records import Draft, EventType, RunRecord, Selector, StopRequest
from stoppable.stores.base import WorkerInfo
from stoppable.stores.postgres import from_url
from table import Row, Section, Target

RUNS = 20_000
MOST = Target(limit=500, absolute=True)


def measure_section(server: PostgresServer, quick: bool) -> Section:
    runs, turns = (1_000, 1) if quick else (RUNS, 2)
    url = f"{server.url}?schema=bulk&locks={folder()}"
    store = from_url(url)
    store.open()
    store.open_worker(WorkerInfo(id="here"), 36_000).result(30)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_other_replica, args=(url, there), daemon=True)
    process.start()
    took: list[float] = []
    busy: list[tuple[float, float]] = []
    quiet: list[tuple[float, float]] = []
    assert here.poll(60), "the other replica is not ready"
    here.recv()
    for turn in range(turns):
        name = f"turn {turn}"
        store.register(RunRecord(id=name, name=name, worker="here"), name).result(30)
        make_copies(server.url, "bulk", name, runs)

        def stop(name: str = name) -> None:
            began = time.monotonic()
            answers = store.request_stop(StopRequest(target=Selector(agent=name))).result(300).answers
            took.append((time.monotonic() - began) * 1e3)
            assert len(answers) == runs

        busy.append(_longest(here, stop))
        quiet.append(_longest(here, lambda: time.sleep(took[-1] / 1e3)))
    here.send("end")
    process.join(60)
    store.close()
    appends, beats = (max(values) for values in zip(*busy, strict=True))
    usual_appends, usual_beats = (max(values) for values in zip(*quiet, strict=True))
    rows = [
        Row(name=f"stop of {runs:,} runs, the slowest", value=max(took), unit="ms"),
        Row(name="longest append of another replica meanwhile", value=appends, unit="ms", target=MOST),
        Row(name="longest append in the same time without it", value=usual_appends, unit="ms"),
        Row(name="longest heartbeat of another replica meanwhile", value=beats, unit="ms", target=MOST),
        Row(name="longest heartbeat in the same time without it", value=usual_beats, unit="ms"),
    ]
    notes = [
        f"{turns} bulk stops. The other replica appends and beats one after the other without a pause, on two threads."
    ]
    return Section(title="A bulk stop", rows=rows, notes=notes)


def _longest(here: Connection, act: Callable[[], object]) -> tuple[float, float]:
    """Return the longest append and heartbeat of the other replica, in milliseconds, while something is done."""
    here.send("watch")
    here.recv()
    act()
    here.send("say")
    assert here.poll(60), "the other replica does not answer"
    appends, beats = here.recv()
    return appends, beats


def _other_replica(url: str, there: Connection) -> None:
    store = from_url(url)
    store.open()
    store.open_worker(WorkerInfo(id="other"), 36_000).result(30)
    store.register(RunRecord(id="its run", name="other", worker="other"), "its run").result(30)
    event = [Draft(type=EventType.PROGRESS, data={"name": "token", "data": {}})]
    waits: dict[str, list[float]] = {"append": [0.0], "beat": [0.0]}
    is_over = threading.Event()

    def repeat(name: str, call: Callable[[], object]) -> None:
        while not is_over.is_set():
            began = time.monotonic()
            call()
            waits[name].append((time.monotonic() - began) * 1e3)

    calls = {
        "append": lambda: store.append("its run", 1, event).result(60),
        "beat": lambda: store.heartbeat("other", 36_000).result(60),
    }
    threads = [threading.Thread(target=repeat, args=item) for item in calls.items()]
    for thread in threads:
        thread.start()
    there.send("ready")
    while (asked := there.recv()) != "end":
        if asked == "watch":
            for name in waits:
                waits[name] = [0.0]
            there.send("watching")
        else:
            known = {name: len(found) for name, found in waits.items()}
            while any(len(found) == known[name] for name, found in waits.items()):
                time.sleep(0.001)  # the calls that are on their way may be the longest
            there.send((max(waits["append"]), max(waits["beat"])))
    is_over.set()
    for thread in threads:
        thread.join()
    store.close()
