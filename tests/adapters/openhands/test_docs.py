"""Every code block of the pages about OpenHands is executed, where that is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .test_agent_server import START_SECONDS

pytestmark = pytest.mark.timeout(START_SECONDS + 100)
DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/openhands.md", DOCS / "reference/openhands.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say.
    promised = re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])
    assert [line for line in done.stdout.splitlines() if line in promised] == promised, done.stdout


def test_the_example_runs():
    terminals, example = Path(__file__).with_name("ready_terminals.py"), DOCS.parent / "examples/openhands_stop.py"
    command = [sys.executable, "-W", "ignore", str(terminals), str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "stopped (this takes too long)" in done.stdout
    assert "the conversation is paused, its run stopped" in done.stdout
