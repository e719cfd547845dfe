"""Processes of `stoppable serve` on one database."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
from tests.ports import held_port
from tests.waiting import wait_until

HERE = Path(__file__).parent
SECONDS = 60


class Replica:
    """One server, with the agents of a module."""

    home = HERE
    agents = "fleet_agents"
    seconds = SECONDS

    def __init__(self, url, folder, ttl=30, **environment):
        self._held = contextlib.ExitStack()
        self.port = self._held.enter_context(held_port())
        self.log = folder / f"{self.port}.log"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("STOPPABLE")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "stoppable", "serve", self.agents, "--port", str(self.port), "--ttl", str(ttl)],
                cwd=self.home,
                env={**variables, "STOPPABLE_STORE": url, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=self.seconds, verify=False)
        wait_until(self.is_ready, self.seconds)

    def is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def start(self, agent="forever", **options):
        answer = self.http.post("/runs", json={"agent": agent, **options})
        assert answer.status_code == 201, answer.text
        run = answer.json()["id"]
        wait_until(lambda: self.status(run) == "running", self.seconds)
        return run

    def stop(self, run, **options):
        return self.http.post(f"/runs/{run}/stop", json={"reason": "enough", **options})

    def record(self, run):
        answer = self.http.get(f"/runs/{run}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, run):
        return self.record(run)["status"]

    def over(self, run):
        """Wait for the end of a run, and return its record."""
        return wait_until(lambda: (record := self.record(run))["endedAt"] and record, self.seconds)

    def signal(self, number):
        self.process.send_signal(number)

    def close(self):
        self.http.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(self.seconds)
        self._held.close()

    def ends(self):
        return self.process.wait(self.seconds)

    def freeze(self):
        self.signal(signal.SIGSTOP)
