"""The unmodified package of npm, the newest and the oldest that is tested, stops agents in each of its ways."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ..openai_api.agents import Marks
from .conftest import DEADLINE, runs, serving

ROOT = Path(__file__).parents[3]
FOLDERS = {"newest": ".venv-node", "oldest": ".venv-node-langgraph0"}
NAMES = ("stopped", "rolled", "left", "busy")
NOTES = ["ai", "notes on tides: one two"]


@pytest.mark.parametrize("version", FOLDERS)
def test_the_package_of_npm_stops_joins_and_goes_on(tmp_path, version):
    package = ROOT / FOLDERS[version] / "node_modules/@langchain/langgraph-sdk/dist/index.js"
    if shutil.which("node") is None or not package.exists():
        pytest.skip("npm or its package @langchain/langgraph-sdk is missing")
    for name in NAMES:
        (tmp_path / name).mkdir()
    with serving() as service:
        command = ["node", Path(__file__).with_name("client.mjs"), package, service.url, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
        assert done.returncode == 0, done.stderr
        assert_told(dict(map(json.loads, done.stdout.splitlines())))
        assert all(run.over for run in runs(service))
        assert [Marks(tmp_path / name).still_there() for name in NAMES] == [[]] * 4
        ends = [(run.status, run.reason.kind) for run in reversed(runs(service)) if run.name == "research"]
        by_user = ("stopped", "user")
        assert ends == [by_user, by_user, ("stopped", "disconnect"), by_user]


def assert_told(told):
    assert told["stopped"] == {
        "events": ["metadata", "values", "messages"],
        "text": NOTES[1],
        "status": "interrupted",
        "thread": "idle",
    }
    assert told["next"][1:] == [NOTES, ["human", "and now"], ["ai", "and now "]]
    assert told["history"] == 4
    assert told["rolled back"] == [{}, 0]
    assert told["left"] == "interrupted"
    assert told["interrupted"] == ["interrupted", ["ai", "instead "]]
    count, rest, expected = told["joined"]
    assert (count, rest) == (4, expected)
    assert "ValueError: the tool is broken" in told["failed"]
    assert told["refused"] == 404
    assert told["found"]
