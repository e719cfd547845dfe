"""Every code block of the pages about the Claude Agent SDK is executed, and adopting the adapter takes three lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 300  # a block starts two CLIs
pytestmark = pytest.mark.timeout(SECONDS + 100)
DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/claude-agent-sdk.md", DOCS / "reference/claude-agent-sdk.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(tmp_path, number):
    (tmp_path / "block.py").write_text(BLOCKS[number])
    # The CLI has a home of its own, and talks to nobody but the scripted model.
    own = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    environment = os.environ | own | {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    command = [sys.executable, "-W", "ignore", "block.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say.
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])


def test_adopting_it_changes_three_lines():
    lines = BLOCKS[0].splitlines()
    changed = [line for line in lines if re.search(r"# (new|was: .*)$", line)]
    assert 0 < len(changed) <= 3
    asks_to_stop = ("stop(", "outcome()", "receipt", "stoppable.testing")  # what shows the stop, not what adopts it
    unmarked = [line for line in lines if line not in changed and not any(word in line for word in asks_to_stop)]
    assert [line for line in unmarked if "stoppable" in line] == []
