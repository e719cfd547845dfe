"""Waits that a stop wakes: by whom, and from where."""

import subprocess
import sys

import pytest

# The signal comes at one line after the other of the wait, those in the standard library's threading included.
SIGNAL_AT_EVERY_LINE = """
import asyncio, faulthandler, signal, sys, threading
from pathlib import Path
import stoppable
from stoppable import sync

faulthandler.dump_traceback_later(50, exit=True)
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

class signalled_at:
    def __init__(self, line, run):
        self.line, self.run, self.came = line, run, False

    def __enter__(self):
        signal.signal(signal.SIGTERM, self.stop)
        sys.settrace(signal_at(self.line))

    def __exit__(self, *error):
        sys.settrace(None)

    def stop(self, *_):
        self.came = True
        self.run.stop("cooperative")

def items():
    sync.sleep(0.005)
    yield 1

@stoppable.agent
async def numbers():
    for number in range(3):
        yield number

def wait_on_a_thread(line):
    try:
        with stoppable.open_run("work") as run:
            signalled = signalled_at(line, run)
            with signalled:
                BLOCKING
    except stoppable.RunStopped:
        pass
    return signalled.came

async def wait_in_a_task(line):
    try:
        async with stoppable.open_run("work") as run:
            signalled = signalled_at(line, run)
            with signalled:
                ASYNC
    except stoppable.RunStopped:
        pass
    return signalled.came

def lines_of(wait):
    lines = 0
    while wait(lines):
        lines += 1
    return lines
"""

BLOCKING = {
    "sleep": "sync.sleep(0.005)",
    "sleep with a hook": "stoppable.on_stop(list); sync.sleep(0.005)",
    "the end of a child": "sync.call(lambda: sync.sleep(0.005))",
    "an item": "for _ in sync.spawn(items).stream(): pass",
    "a process": "sync.run_process(['sleep', '0.005'])",
}
ASYNC = {
    "sleep": "await stoppable.sleep(0.005)",
    "the end of a child": "await stoppable.call(items)",
    "an item": "async for _ in numbers(): pass",
    "a process": "await stoppable.run_process(['sleep', '0.005'])",
}


def lines_waited(wait, *, blocking="pass", in_task="pass"):
    """Wait again and again, each time with the signal one line later, and return how many lines there are."""
    script = SIGNAL_AT_EVERY_LINE.replace("BLOCKING", blocking).replace("ASYNC", in_task)
    script += f"print(lines_of({wait}))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return int(ended.stdout)


@pytest.mark.parametrize("wait", BLOCKING)
def test_a_signal_handler_may_stop_the_run_at_every_line_of_a_wait_on_a_thread(wait):
    assert lines_waited("wait_on_a_thread", blocking=BLOCKING[wait]) > 20


@pytest.mark.parametrize("wait", ASYNC)
def test_a_signal_handler_may_stop_the_run_at_every_line_of_a_wait_in_a_task(wait):
    assert lines_waited("lambda line: asyncio.run(wait_in_a_task(line))", in_task=ASYNC[wait]) > 20
