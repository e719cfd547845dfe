"""A run that cannot obey is told as such where it is stopped."""

import os
import signal
import subprocess
import sys

AGENT = """
import signal
import sys
import time

def agent():
    while getattr(signal.getsignal(signal.SIGINT), "__name__", "") != "_sighandler_noop":
        time.sleep(0.001)  # until the command hears Ctrl-C
    print("working", flush=True)
    sys.stdin.readline()
"""


def test_an_interrupt_says_that_the_run_never_looked(tmp_path):
    (tmp_path / "blind_agent.py").write_text(AGENT)
    process = subprocess.Popen(
        [sys.executable, "-m", "stoppable", "run", "blind_agent:agent"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert process.stdout.readline().strip() == "working"
    process.send_signal(signal.SIGINT)
    told = "it has met no boundary or check: cancelled in 2 s"
    errors = ""
    while told not in errors and (line := process.stderr.readline()):
        errors += line
    process.communicate("\n", timeout=60)
    assert told in errors
