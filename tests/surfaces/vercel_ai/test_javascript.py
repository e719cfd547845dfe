"""The unmodified package of npm, the newest and version 5.0.0, stops agents by the endpoint and by leaving."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ..openai_api.agents import Marks
from .conftest import DEADLINE, runs, serving, wait_until

ROOT = Path(__file__).parents[3]
FOLDERS = {"newest": ".venv-node", "5.0.0": ".venv-node-vercel5"}
MAY = "The run was stopped while this call was in flight: it may have taken effect."


@pytest.mark.parametrize("version", FOLDERS)
def test_the_package_of_npm_stops_resumes_and_goes_on(tmp_path, version):
    package = ROOT / FOLDERS[version] / "node_modules/ai/dist" / ("index.js" if version == "newest" else "index.mjs")
    if shutil.which("node") is None or not package.exists():
        pytest.skip("npm or its package ai is missing")
    for name in ("stopped", "left"):
        (tmp_path / name).mkdir()
    with serving() as service:
        command = ["node", Path(__file__).with_name("client.mjs"), package, service.url, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stderr
        told = dict(map(json.loads, done.stdout.splitlines()))
        assert_goes_on(told)
        if version == "newest":  # the first one does not know that it has nothing to wait for
            assert told["nothing to resume"] == "ready"
        wait_until(lambda: all(run.over for run in runs(service)))
        assert [Marks(tmp_path / name).still_there() for name in ("stopped", "left")] == [[], []]
        ends = [(run.name, run.reason.kind, run.reason.source) for run in reversed(runs(service)) if run.reason]
        by_button = [("research", "user", "vercel"), ("tooling", "user", "vercel")]
        assert ends == [*by_button, ("research", "disconnect", "vercel"), ("tooling", "user", "vercel")]


def assert_goes_on(told):
    stopped = told["stopped"]
    assert (stopped["status"], stopped["shown"][1]) == ("ready", ["assistant", "notes on tides: one two"])
    assert (stopped["facts"]["status"], stopped["facts"]["alive"]) == ("stopped", [])
    assert "data-stopping" in stopped["seen"]["data"]
    assert stopped["seen"]["errors"] == []
    assert told["next"]["shown"][2:] == [["user", "and now"], ["assistant", "and now "]]
    assert told["press"] == [200, "stopped"]
    assert told["tool"]["shown"][1] == ["assistant", "looking ", ["search", "output-error", MAY]]
    assert told["tool"]["seen"]["errors"] == []
    search = ["search", "output-available", {"fate": "finished"}]
    assert told["after the tool"]["shown"][2:] == [["user", "go"], ["assistant", "looking ", search, "found it"]]
    assert told["left"]["status"] == "ready"
    assert told["after leaving"]["shown"][2:] == [["user", "and now"], ["assistant", "and now "]]
    assert told["second page"] == told["first page"]
    assert told["first page"]["shown"] == [
        ["user", "sleep"],
        ["assistant", "looking ", ["search", "output-error", MAY]],
    ]
    assert told["failed"]["status"] == "error"
    assert told["failed"]["seen"]["errors"] == ["ValueError: the tool is broken"]
    assert told["failed"]["facts"]["status"] == "failed"
    [subagent] = told["team"]["agents"]
    assert (subagent["data"]["name"], subagent["data"]["status"]) == ("helper", "completed")
    assert told["team"]["shown"][1] == ["assistant", "asking helped with tides"]
    assert told["refused"] == {"status": "error", "error": "agent_not_found"}
