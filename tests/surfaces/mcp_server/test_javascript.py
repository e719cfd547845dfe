"""The unmodified client of npm stops agents too."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ..openai_api.agents import Marks
from .conftest import runs, serving

PACKAGE = Path(__file__).parents[3] / ".venv-node/node_modules/@modelcontextprotocol/client/dist/index.mjs"


@pytest.mark.skipif(shutil.which("node") is None or not PACKAGE.exists(), reason="npm or the client is missing")
def test_the_client_of_npm_cancels_over_both_versions_of_the_protocol(tmp_path):
    modes = ("auto", "legacy")
    for mode in modes:
        (tmp_path / mode).mkdir()
    with serving() as service:
        command = ["node", Path(__file__).with_name("client.mjs"), PACKAGE, service.url, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        told = dict(map(json.loads, done.stdout.splitlines()))
        for mode in modes:
            assert told[mode] == {
                "outcome": "an error",
                "status": "stopped",
                "text": "notes on tides: one two",
                "next": "and now",
            }
            assert Marks(tmp_path / mode).still_there() == []
        ends = [(run.status, run.reason.kind, run.reason.source) for run in runs(service) if run.name == "research"]
        assert ends == [("stopped", "disconnect", "mcp")] * 2
