"""The unmodified client of npm, the newest and one from before 1.0, stops agents by leaving."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ..openai_api.agents import Marks
from .conftest import DEADLINE, runs, serving, wait_until

ROOT = Path(__file__).parents[3]
CLIENTS = {
    "newest": ROOT / ".venv-node/node_modules/@ag-ui/client/dist/index.js",
    "before 1.0": ROOT / ".venv-node-agui0/node_modules/@ag-ui/client/dist/index.js",
}


@pytest.mark.parametrize("version", CLIENTS)
def test_the_client_of_npm_aborts_and_goes_on(tmp_path, version):
    package = CLIENTS[version]
    if shutil.which("node") is None or not package.exists():
        pytest.skip("npm or its package @ag-ui/client is missing")
    for name in ("aborted", "stopped"):
        (tmp_path / name).mkdir()
    with serving() as service:
        command = ["node", Path(__file__).with_name("client.mjs"), package, service.url, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stderr
        told = dict(map(json.loads, done.stdout.splitlines()))
        assert_goes_on(told, is_current=version == "newest")
        wait_until(lambda: all(run.over for run in runs(service)))
        assert [Marks(tmp_path / name).still_there() for name in ("aborted", "stopped")] == [[], []]
        ends = [(run.name, run.status, run.reason.kind) for run in reversed(runs(service)) if run.reason is not None]
        left = [("research", "stopped", "disconnect"), ("waits", "stopped", "disconnect")]
        assert ends == [*left, ("crew", "stopped", "user")]


def assert_goes_on(told, *, is_current):
    if is_current:
        assert told["aborted"]["last"] == {"type": "RUN_ERROR", "code": "abort"}, "which the client itself has made"
    assert told["aborted"]["messages"] == 2
    [question, *others] = told["next"]["messages"]
    assert question[0] == "user"
    answer = ["assistant", "notes on tides: one two"]
    assert others == [answer, ["user", "and now"], ["assistant", "and now "]]
    assert told["next"]["last"]["type"] == "RUN_FINISHED"
    assert told["hasty"] == [["user", "go"], ["assistant", "first "], ["user", "and now"], ["assistant", "and now "]]
    if is_current:
        assert told["stopped"]["last"] == {"type": "RUN_FINISHED", "outcome": {"type": "cancelled"}}
        assert told["stopped"]["subagents"] == ["SUBAGENT_STARTED", "SUBAGENT_ERROR"]
        assert told["stopped"]["messages"] == 3
        assert told["done"]["words"] == [
            [False, "tides"],
            [False, "asking helped with tides"],
            [True, "tides found "],
        ]
    else:
        assert told["stopped"]["last"] == {"type": "RUN_ERROR", "code": "stopped"}
        assert told["done"]["words"] == [[False, "tides"], [False, "asking helped with tides"]]
    assert told["done"]["last"] == {"type": "RUN_FINISHED"}
    assert told["refused"]["status"] == 404
    assert told["refused"]["payload"]["code"] == "agent_not_found"
