"""Replicas: `stoppable serve` processes that share one store, and what is done to them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
from tests.served import Server

from .freezing import freeze

HERE = Path(__file__).parent
DEADLINE = 60  # only a defect takes that long


class Replica:
    """One `stoppable serve` process."""

    def __init__(self, name, store, ttl):
        self.name = name
        self._command = [
            *(sys.executable, "-m", "stoppable", "serve", "fault_agents:AGENTS"),
            *("--port", "0", "--store", store, "--ttl", str(ttl)),
        ]
        self.begin()

    def begin(self):
        """Start it, or start it again after it has ended; it has a ``url`` again when it is ready."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "COVERAGE"))
        }
        self._process = subprocess.Popen(
            self._command, cwd=HERE, env=variables, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._server = Server(self._process)
        self.url = None

    @property
    def pid(self):
        return self._process.pid

    def ready(self):
        """Wait until it takes runs."""
        url = self.url or self._server.url(5 * DEADLINE)  # under load, and a defect would end it
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                    self.url = url
                    return self
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, f"{self.name} is not ready: {self._server._said}"
            time.sleep(0.02)

    def signal(self, signum):
        self._process.send_signal(signum)

    def freeze(self, store=None):
        freeze(self.pid, store)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        """End it as a power cut would."""
        self.url = None
        self._process.kill()
        self._process.wait(DEADLINE)
        self._server.close()

    def wait(self):
        """Return its exit code, once it has ended by itself, and what it said."""
        code = self._process.wait(DEADLINE)
        self.url = None
        said = self._server.said()
        self._server.close()
        return code, said

    def last_words(self, lines=60):
        """End it, and return the last that it said."""
        self.end()
        return "\n".join(self._server.said().splitlines()[-lines:])

    def end(self):
        if self._process.poll() is None:
            self.kill()


class Replicas(list):
    """Several of them; ended when the block is left."""

    def __init__(self, stores, ttl):
        super().__init__(Replica(f"replica {number}", store, ttl) for number, store in enumerate(stores))

    def __enter__(self):
        try:
            for replica in self:
                replica.ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for replica in self:
            replica.end()
