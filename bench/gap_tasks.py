"""The task of a Celery worker: it says in a folder when it begins, and that it came to its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

app = Celery("gap_tasks", broker=os.environ["GAP_BROKER"])
app.conf.broker_connection_retry_on_startup = True


@app.task(name="work")
def work(folder: str, seconds: float) -> None:
    Path(folder, "begun").touch()
    time.sleep(seconds)
    Path(folder, "ended").touch()
