"""Waits that a stop wakes: by whom, and from where."""

import subprocess
import sys

import pytest

# The signal comes at one line after the other of the wait, those in the standard library included.
SIGNAL_AT_EVERY_LINE = """
import faulthandler, signal, sys, threading
from pathlib import Path
import stoppable
from stoppable import sync

faulthandler.dump_traceback_later(15, exit=True)
TRACED = (str(Path(stoppable.__file__).parent), threading.__file__)

def signal_at(line):
    def trace(frame, event, arg):
        nonlocal line
        if not frame.f_code.co_filename.startswith(TRACED):
            return None
        line -= event == "line"
        if line < 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGTERM)
        return trace
    return trace

def items():
    sync.sleep(0.005)
    yield 1

def wait_signalled_at(line):
    reached = []
    def stop(*_):
        reached.append(line)
        run.stop("cooperative")
    signal.signal(signal.SIGTERM, stop)
    try:
        with stoppable.open_run("work") as run:
            sys.settrace(signal_at(line))
            try:
                WAIT
            finally:
                sys.settrace(None)
    except stoppable.RunStopped:
        pass
    return bool(reached)

lines = 0
while wait_signalled_at(lines):
    lines += 1
print(lines)
"""


WAITS = {
    "sleep": "sync.sleep(0.005)",
    "sleep with a hook": "stoppable.on_stop(list); sync.sleep(0.005)",
    "the end of a child": "sync.call(lambda: sync.sleep(0.005))",
    "an item": "for _ in sync.spawn(items).stream(): pass",
    "a process": "sync.run_process(['sleep', '0.005'])",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_handler_may_stop_the_run_at_every_line_of_a_wait(wait):
    script = SIGNAL_AT_EVERY_LINE.replace("WAIT", WAITS[wait])
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 20
