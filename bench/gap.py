"""Stops that are sent in the moment in which a worker has lost its connections: how many arrive.

    .venv-fleet-peers/bin/python bench/gap.py

Beside ours, on Postgres, is Celery's revoke, on Redis: it is published, and nobody listens while a connection is made
again. Each has its connections reset by the same proxy. Writes bench/results/gap.md; needs a redis-server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import facts
from table import write

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fleet.postgres_server import PostgresServer
from tests.fleet.test_gap import TTL, stopped
from tests.ports import held_port
from tests.proxy import Proxy
from tests.waiting import wait_until

from stoppable import sync

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "gap.md"
TIMES = 100
WORKERS = 4  # of Celery, beside each other: a stop that is lost takes as long as the task
DEADLINE = 60
TASK_SECONDS = 4.0

REPORT = """\
# Stops in the moment of a reset, measured

Written by `.venv-fleet-peers/bin/python bench/gap.py` after `make bench-fleet`. A worker's connections are reset, and a
stop is sent at once.

{facts}

| what | sent | arrived |
|---|---:|---:|
| stoppable on Postgres, connections reset | {times} | {ours} |
| Celery `revoke(terminate=True)` on Redis, connections reset | {times} | {celery} |
| Celery `revoke(terminate=True)` on Redis, undisturbed | {control} | {undisturbed} |

- Ours: the run has ended in its process. Its lease is an hour long, so that no heartbeat brings the stop.
- Celery: the task, which takes {seconds:g} s, did not come to its end. {workers} workers with one process each, and the
  default settings.
"""


def ours() -> int:
    """Return how many stops arrive; one that does not raises."""
    server = PostgresServer()
    try:
        with Proxy(server.port) as proxy, sync.Supervisor(server.url, ttl=TTL) as other:
            url = server.url.replace(f":{server.port}/", f":{proxy.port}/")
            with sync.Supervisor(url, ttl=TTL) as worker:
                return len([stopped(proxy, worker, other) for _ in range(TIMES)])
    finally:
        server.close()


@contextlib.contextmanager
def _process(*command: str, **variables: str) -> Iterator[None]:
    process = subprocess.Popen(
        command,
        cwd=HERE,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(DEADLINE)


def celery() -> tuple[int, int]:
    """Return how many stops arrive when connections were reset, and of as many as there are workers undisturbed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(held_port())
        options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder))
        stack.enter_context(_process("redis-server", *options))
        os.environ["GAP_BROKER"] = f"redis://127.0.0.1:{port}/0"
        from gap_tasks import app  # noqa: PLC0415 - it reads the variable

        proxies = [stack.enter_context(Proxy(port)) for _ in range(WORKERS)]
        for number, proxy in enumerate(proxies):
            worker = ("worker", "--concurrency=1", "-Q", f"queue-{number}", "-n", f"worker-{number}@gap")
            command = (sys.executable, "-m", "celery", "-A", "gap_tasks", *worker)
            stack.enter_context(_process(*command, GAP_BROKER=f"redis://127.0.0.1:{proxy.port}/0"))
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))

        def of_worker(number: int) -> tuple[int, int]:
            undisturbed = _arrives(app, folder, number, None)
            return sum(_arrives(app, folder, number, proxies[number]) for _ in range(TIMES // WORKERS)), undisturbed

        counts = list(pool.map(of_worker, range(WORKERS)))
        return sum(count for count, _ in counts), sum(undisturbed for _, undisturbed in counts)


def _arrives(app: Any, folder: Path, number: int, proxy: Proxy | None) -> bool:
    place = folder / uuid.uuid4().hex
    place.mkdir()
    sent = app.send_task("work", (str(place), TASK_SECONDS), queue=f"queue-{number}")
    wait_until((place / "begun").exists, DEADLINE)
    if proxy is not None:
        proxy.reset()
    app.control.revoke(sent.id, terminate=True, destination=[f"worker-{number}@gap"])
    with contextlib.suppress(AssertionError, TimeoutError):
        wait_until((place / "ended").exists, 2 * TASK_SECONDS)
    return not (place / "ended").exists()


def main() -> None:
    if shutil.which("redis-server") is None:
        raise SystemExit("redis-server is missing: Celery needs it (Debian: apt-get install redis-server)")
    about = facts(("stoppable", "psycopg", "celery", "redis"))
    arrived = ours()
    print(f"stoppable: {arrived} of {TIMES}", flush=True)
    revoked, undisturbed = celery()
    print(f"Celery: {revoked} of {TIMES}; undisturbed {undisturbed} of {WORKERS}")
    listed = "\n".join(f"- {name}: {value}" for name, value in about)
    write(
        RESULTS,
        REPORT.format(
            facts=listed,
            times=TIMES,
            ours=arrived,
            celery=revoked,
            control=WORKERS,
            undisturbed=undisturbed,
            workers=WORKERS,
            seconds=TASK_SECONDS,
        ),
    )


if __name__ == "__main__":
    main()
