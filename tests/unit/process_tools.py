"""What the tests of processes share: looking at /proc, and files by which processes and tests talk."""

import gc
import os
import time
from pathlib import Path

from stoppable._engine.processes.group import live

ESCAPED = "setsid setsid sh -c 'echo $$; exec sleep 1000'"
"""A process that leaves the session, and tells its pid."""
STUBBORN = "trap '' TERM; while :; do sleep 0.01; done"
"""One that only KILL ends."""


def agent_of(worker):
    """Return the pid of the agent process, which is the first child of its reaper."""
    reaper = worker._reaped.reaper.pid
    deadline = time.monotonic() + 30
    while not (children := Path(f"/proc/{reaper}/task/{reaper}/children").read_text().split()):
        assert time.monotonic() < deadline, "the reaper has no child"
        time.sleep(0.001)
    return int(children[0])


def bearers(run_id):
    """Return the live processes that bear a run's cookie."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"STOPPABLE_RUN={run_id}".encode() in environ.split(b"\0"):
                found.append(int(entry.name))
    return found


def zombies():
    """Return the children of ours that nobody reaped."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                letter, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if letter == "Z" and int(parent) == os.getpid():
                found.append(int(entry.name))
    return found


def nothing_left():
    """Look for a group, a zombie or a descriptor that a test left; the body of a fixture."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    yield
    gc.collect()
    deadline = time.monotonic() + 30
    while live or zombies() or len(list(Path("/proc/self/fd").iterdir())) > descriptors:
        assert time.monotonic() < deadline, (list(live), zombies(), list(Path("/proc/self/fd").iterdir()))
        time.sleep(0.005)


class Flags:
    """Files by which processes and tests tell each other how far they are."""

    def __init__(self, directory):
        self.directory = directory

    def up(self, name):
        """Return the shell command that raises a flag."""
        return f"touch {self.directory}/{name}"

    def wait(self, name):
        """Return the shell command that waits for a flag."""
        return f"while [ ! -e {self.directory}/{name} ]; do sleep 0.01; done"

    def is_up(self, name):
        """Return whether a flag was raised."""
        return (self.directory / name).exists()

    def raise_(self, name):
        """Raise a flag."""
        (self.directory / name).touch()

    def lower(self, name):
        """Lower a flag."""
        (self.directory / name).unlink(missing_ok=True)
