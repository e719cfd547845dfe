"""The server does what its OpenAPI document says, with whatever schemathesis can think of."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

SECONDS = 60
SEED = os.environ.get("SEED", "1")  # the same requests each time, as far as the time allows


@contextlib.contextmanager
def served():
    script = Path(__file__).parent / "served_echo.py"
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.timeout(SECONDS * 4)
def test_schemathesis_finds_nothing():
    with served() as url:
        # the id of the examples, so that they lead somewhere
        made = httpx.post(f"{url}/runs", json={"agent": "research", "runId": "3f2a"}, timeout=30)
        assert made.status_code == 201
        done = subprocess.run(
            [
                *(
                    Path(sys.executable).parent / "schemathesis",
                    "--config-file",
                    Path(__file__).parent / "schemathesis.toml",
                ),
                *("run", f"{url}/openapi.json"),
                *("--exclude-path", "/events"),  # a stream of all runs has no end
                *("--checks", "all", "--max-examples", "40", "--max-time", str(SECONDS), "--seed", SEED, "--no-color"),
            ],
            capture_output=True,
            text=True,
            timeout=SECONDS * 3,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        print(done.stdout)
