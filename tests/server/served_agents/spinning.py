"""An agent that never lets go of the interpreter, and others."""

import json
import sys
import time
from pathlib import Path

import stoppable
from stoppable.server import serve


def spinner(until: str):
    end = time.monotonic() + 5
    with stoppable.boundary("tool", "spin"):
        while time.monotonic() < end and not Path(until).exists():
            for _ in range(10_000):
                pass


async def other():
    await stoppable.sleep(30)


if __name__ == "__main__":
    serve([spinner, other], port=0, ready=lambda url: print(url, flush=True), **json.loads(sys.argv[1]))
