"""``stoppable watch`` is told what changes: it does not ask again and again."""

import json
import logging
import os
import subprocess
import sys

from tests.server.serving import served

import stoppable
from stoppable.client import Client


@stoppable.agent
async def quick():
    """Return at once."""


def test_lines_come_by_themselves_and_the_list_is_asked_for_once(caplog):
    caplog.set_level(logging.DEBUG, "stoppable.access")
    with served([quick]) as service, Client(service.url) as client:
        process = subprocess.Popen(
            [sys.executable, "-m", "stoppable", "watch", "--json", "--interval", "0.1"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "STOPPABLE_URL": service.url},
        )
        try:
            for _ in range(5):
                run_id = client.start("quick").id
                while True:
                    told = json.loads(process.stdout.readline())
                    if (told["id"], told["status"]) == (run_id, "completed"):
                        break
        finally:
            process.kill()
            process.communicate(timeout=30)
    asked = [record.getMessage() for record in caplog.records if "GET /runs " in record.getMessage()]
    assert len(asked) <= 3, asked
