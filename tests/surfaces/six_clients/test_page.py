"""The page about six clients is executed from top to bottom, beside one real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoppable.client import Client

from ...served import serving
from ...waiting import wait_until

PAGE = Path(__file__).parents[3] / "docs/how-to/six-clients.md"
ADDRESS = "http://127.0.0.1:8420"
DEADLINE = 120  # only a defect takes so long, also where everything else is busy
(_, AGENT), (_, SERVE), *CLIENTS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def execute(language, code, url, folder):
    """Execute a block as a reader would, and return what it prints."""
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "STOPPABLE_URL": url}
    command = {"sh": ["bash", "-ec"], "python": [sys.executable, "-W", "ignore", "-c"]}[language]
    done = subprocess.run(
        [*command, code.replace(ADDRESS, url)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(len(CLIENTS) * DEADLINE)
def test_each_client_of_the_page_starts_the_agent_and_stops_it(tmp_path):
    (tmp_path / "my_agents.py").write_text(AGENT)
    target = SERVE.removeprefix("stoppable serve ").split()
    with serving(*target, "--store", "memory://", folder=tmp_path) as (_, url), Client(url) as client:
        for number, (language, code) in enumerate(CLIENTS, 1):
            said = execute(language, code, url, tmp_path)
            if language == "python":
                promised = re.findall(r"print\(.*\)  # (.*)", code)
                assert promised
                assert said.splitlines() == promised
            wait_until(lambda: all(run.status == "stopped" for run in client.list().runs))
            assert len(client.list().runs) == min(number, 6)


def test_six_clients_are_on_the_page():
    assert [language for language, _ in CLIENTS] == ["sh", "sh", "python", "python", "python", "python", "sh"]
