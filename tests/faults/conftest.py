"""Real processes on one store, and what is done to them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import wait_until

from stoppable import sync
from stoppable.stores.sqlite import SqliteStore

from .freezing import freeze

TTL = 3.0  # long enough for a disk that is busy with something else
LONG = 30.0  # for those that shall not lose their lease, however busy the machine is
NODE = Path(__file__).with_name("node.py")


class WorkerProcess:
    """One process that executes runs."""

    def __init__(self, path, ttl=LONG):
        self._process = subprocess.Popen(
            [sys.executable, str(NODE), str(path), str(ttl)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            restore_signals=True,
        )
        self.pid = self._process.pid
        assert self._read()["ready"] == self.pid

    def _read(self):
        line = self._process.stdout.readline()
        assert line, f"the process has ended with {self._process.wait(5)}"
        return json.loads(line)

    def ask(self, **message):
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        return self._read()

    def start(self, agent, *args, owner=None):
        return self.ask(do="start", agent=agent, args=[str(arg) for arg in args], owner=owner)["started"]

    def signal(self, signum):
        os.kill(self.pid, signum)

    def freeze(self, supervisor):
        freeze(self.pid, supervisor._core.store)

    def wait(self, within=30):
        return self._process.wait(within)

    def end(self):
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
            self._process.wait(5)
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def node(path):
    nodes = []

    def start(ttl=LONG):
        nodes.append(WorkerProcess(path, ttl))
        return nodes[-1]

    yield start
    for one in nodes:
        one.end()


@pytest.fixture
def supervisor(path):
    with sync.Supervisor(SqliteStore(path), ttl=TTL) as supervisor:
        yield supervisor


def over(supervisor, run_id, within=30.0):
    """Return the record of a run that must end by itself."""
    return wait_until(lambda: (record := supervisor.get(run_id)).over and record, within)
