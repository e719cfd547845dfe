"""The app of examples/user_code_app in a process of its own, and a client of it."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from ..waiting import wait_until

APP = Path(__file__).parents[2] / "examples" / "user_code_app"
DEADLINE = 60  # seconds: only a defect takes so long


class Running:
    """One replica of the app."""

    def __init__(self, folder, *options, port=0):
        self.folder = folder
        foreign = ("STOPPABLE", "OPENAI", "COVERAGE")
        variables = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        command = [sys.executable, "main.py", "--port", str(port), "--folder", str(folder), *options]
        self.process = subprocess.Popen(
            command,
            cwd=APP,
            env={**variables, "A_SECRET": "of the server"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.Queue()
        self._said = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self.url = self._address()
        self.http = httpx.Client(base_url=self.url, timeout=DEADLINE, cookies={"user": "ann"})

    def _listen(self):
        for line in self.process.stderr:
            self._lines.put(line)

    def _address(self):
        while True:
            try:
                line = self._lines.get(timeout=2 * DEADLINE)  # imports take long on a busy machine
            except queue.Empty:
                raise AssertionError(f"the app does not start: {''.join(self._said)}") from None
            self._said.append(line)
            if found := re.search(r"running on (http://\S+)", line):
                return found[1]

    def said(self):
        """Return what it has written to its standard error so far."""
        while not self._lines.empty():
            self._said.append(self._lines.get())
        return self._said

    def close(self):
        """End it as a deployment does; it may have been killed."""
        self.http.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        self.process.stderr.close()

    # What a client does

    def start(self, code, how="start", **more):
        """Start code in the background and return the id of its run."""
        given = more.pop("input", {})
        answer = self.http.post(f"/agents/run-code/{how}", json={"code": code, "inputDict": given, "tools": {}, **more})
        assert answer.status_code == 202, answer.text
        return answer.json()["runId"]

    def save(self, agent_id, code, calls=()):
        body = {"name": agent_id, "code": code, "gofannonAgents": list(calls)}
        assert self.http.put(f"/agents/{agent_id}", json=body).status_code == 200

    def stop(self, run_id, **body):
        return self.http.post(f"/runs/{run_id}/stop", json=body)

    def get(self, run_id):
        answer = self.http.get(f"/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def frames(self, run_id, after=None):
        """Yield the events of a run until its end, each as name, data and id."""
        headers = {} if after is None else {"Last-Event-ID": after}
        with self.http.stream("GET", f"/runs/{run_id}/stream", headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield from parsed(response.iter_lines())

    def ended(self, run_id):
        """Wait for the end, see that the stream and the record tell the same, and return the record."""
        *_, (name, done, _) = self.frames(run_id)
        record = self.get(run_id)
        assert name == "done"
        assert done.pop("outcome") == record["status"]
        assert done == {key: record[key] for key in done}
        return record


def parsed(lines):
    frame = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            frame[name] = value
        elif frame:
            yield frame["event"], json.loads(frame["data"]), frame.get("id")
            frame = {}


def wait_for(path):
    """Wait until the code of a user has made a file, and return it."""
    wait_until(path.exists, DEADLINE)
    return path
