"""The unmodified client of npm stops an agent too."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import DEADLINE, PLAIN, ROOT, command

PACKAGE = ROOT / ".venv-node/node_modules/@agentclientprotocol/sdk/dist/v1/stable/acp.js"


@pytest.mark.skipif(shutil.which("node") is None or not PACKAGE.exists(), reason="npm or the client is missing")
def test_the_client_of_npm_cancels(marks):
    words = ["node", Path(__file__).with_name("client.mjs"), PACKAGE, marks.folder, *command(f"{PLAIN}:research")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(map(json.loads, done.stdout.splitlines()))
    assert told["cancelled"] == {"agent": "research", "stopReason": "cancelled", "said": "notes on tides: one two"}
    assert marks.still_there() == []
    assert "ExceptionGroup" in told["next"], "the next turn has begun, in a folder that is not there"
    assert told["exit"] == 0
