"""A command that has an effect every 0.1 s for three seconds: `command.py FILE tree` starts another in its own session.

It needs nothing of this package, so that it starts fast.
"""

import os
import subprocess
import sys
import time

EFFECTS, PAUSE_SECONDS = 30, 0.1


def main() -> None:
    """Do what the docstring of the module says."""
    path, kind = sys.argv[1:]
    child = None
    if kind == "tree":
        child = subprocess.Popen([sys.executable, "-S", "-E", __file__, path, "leaf"], start_new_session=True)
    for _ in range(EFFECTS):
        time.sleep(PAUSE_SECONDS)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{time.monotonic():.6f} {os.getpid()} effect command-{kind}\n".encode())
        os.close(file)
    if child is not None:
        child.wait()


if __name__ == "__main__":
    main()
