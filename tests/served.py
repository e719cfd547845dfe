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


@contextlib.contextmanager
def server_process(*arguments, **environment):
    """Yield the address of a server that serves the demo and the agents in served_agents.py."""
    command = [sys.executable, "-m", "stoppable", "serve", "served_agents", "--demo", "--port", "0", *arguments]
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "OPENAI", "COVERAGE"))
    }
    process = subprocess.Popen(
        command, cwd=HERE, env={**variables, **environment}, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines = queue.Queue()
    reader = threading.Thread(target=lambda: [lines.put(line) for line in process.stderr], daemon=True)
    reader.start()
    try:
        said = ""
        while not (found := re.search(r"at (http://\S+)", said)):
            try:
                said += lines.get(timeout=DEADLINE)
            except queue.Empty:
                raise AssertionError(f"the server does not start: {said}") from None
        yield found[1]
    finally:
        process.terminate()
        try:
            code = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)
            raise
        reader.join(5)
        process.stderr.close()
        assert code == 0, code
