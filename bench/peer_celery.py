"""A Celery worker with one task that goes on until it is terminated, and says when that reached its process."""

from __future__ import annotations

import os
import signal
import time

from celery import Celery

from reports import Report

app = Celery("peer", broker=os.environ["PEER_BROKER"])


@app.task(name="forever")
def forever() -> None:
    report = Report.of_environment()

    def heard(*_: object) -> None:
        report.send(str(time.monotonic()))
        os._exit(0)

    signal.signal(signal.SIGTERM, heard)
    report.send("ready")
    time.sleep(3600)
