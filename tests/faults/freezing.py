"""Stopping a process where it stands, as a laptop that is closed does."""

import os
import signal
import time
from pathlib import Path

from tests.waiting import wait_until

from stoppable.errors import HoldNotFound, StoreError


def freeze(pid, store=None):
    """Stop a process where it stands.

    One that shares a file is not frozen while it writes: nobody else could write then (decision 0009).
    """
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _stands_still(pid))
        if store is None or _can_write(store):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.5)  # the others look ten times a second whether they may write


def _stands_still(pid):
    """Return whether every thread has stopped: one that is in a system call may finish it first, and so take a lock."""
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state in "TtZX" for state in states)


def _can_write(store):
    try:
        store.release("nothing").result(0.5)
    except HoldNotFound:
        return True
    except StoreError:
        return False
    raise AssertionError("there is no such hold")
