"""A real server process, as `stoppable serve` starts it."""

import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE = 30


class Server:
    """A server process, and what it said on its standard error."""

    def __init__(self, process):
        self.process = process
        self._lines = queue.Queue()
        self._said = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put("")  # it has ended, and whoever waits for its words would wait in vain

    def _next_line(self, within):
        try:
            line = self._lines.get(timeout=within)
        except queue.Empty:
            raise AssertionError(f"the server does not go on: {self._said}") from None
        assert line, f"the server has ended: {self._said}"
        self._said += line
        return line

    def url(self, within=3 * DEADLINE):  # imports take long on a busy machine
        """Return its address, once it listens."""
        while not (found := re.search(r"at (http://\S+)", self._said)):
            self._next_line(within)
        return found[1]

    def greeting(self):
        """Return what it says to whoever starts it."""
        while "Ctrl-C here ends" not in self._said:
            self._next_line(3 * DEADLINE)
        return self._said

    def hear(self, text):
        """Wait until it says something that has a text in it."""
        while text not in self._next_line(DEADLINE):
            pass

    def said(self):
        """Return all that it said, once it has ended."""
        self._reader.join(5)
        while not self._lines.empty():
            self._said += self._lines.get()
        return self._said

    def close(self):
        self._reader.join(5)
        self.process.stderr.close()


@contextlib.contextmanager
def serving(*arguments, folder=HERE, **environment):
    """Yield a `stoppable serve` on a free port, and its address; it may end by itself."""
    command = [sys.executable, "-m", "stoppable", "serve", *arguments, "--port", "0"]
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "OPENAI", "COVERAGE"))
    }
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**variables, **environment},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = Server(process)
    try:
        yield server, server.url()
    finally:
        process.kill()
        process.wait(5)
        server.close()


def serving_process(*arguments, **environment):
    """Serve the demo and the agents in served_agents.py."""
    return serving("served_agents", "--demo", *arguments, **environment)


@contextlib.contextmanager
def server_process(*arguments, **environment):
    """Yield the address of such a server, which ends in order when the block is left."""
    with serving_process(*arguments, **environment) as (server, url):
        yield url
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0, server.said()
