"""The unmodified client of npm stops agents too."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .agents import Marks
from .conftest import runs, serving, wait_until

PACKAGE = Path(__file__).parents[3] / ".venv-node/node_modules/openai/index.mjs"


@pytest.mark.skipif(shutil.which("node") is None or not PACKAGE.exists(), reason="npm or its package openai is missing")
def test_the_client_of_npm_cancels_resumes_and_leaves(tmp_path):
    for name in ("background", "responses", "chat"):
        (tmp_path / name).mkdir()
    with serving() as service:
        command = ["node", Path(__file__).with_name("client.mjs"), PACKAGE, service.url, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = dict(map(json.loads, done.stdout.splitlines()))
        assert told["cancelled"] == {"status": "cancelled", "text": "notes on tides: one two"}
        numbers = told["resumed"]["numbers"]
        assert numbers == list(range(3, 3 + len(numbers)))
        assert told["resumed"]["last"] == "cancelled"
        assert told["next"] == {"status": "completed", "text": "and now "}
        assert told["refused"] == {"status": 404, "code": "response_not_found", "kind": "NotFoundError"}
        assert "research" in told["models"]
        wait_until(lambda: all(run.over for run in runs(service)))
        assert [Marks(tmp_path / name).still_there() for name in ("background", "responses", "chat")] == [[], [], []]
        ends = [(run.status, run.reason.kind, run.reason.source) for run in runs(service) if run.name == "research"]
        left = ("stopped", "disconnect", "openai")
        assert ends == [left, left, ("stopped", "user", "openai")]
