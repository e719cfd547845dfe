"""Every code block of the pages about Agent Framework is executed, and adopting it takes at most three lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/agent-framework.md", DOCS / "reference/agent-framework.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]
DEADLINE = 300  # the import alone takes minutes on a machine that is busy enough


@pytest.mark.timeout(DEADLINE + 30)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say.
    said = [line for line in done.stdout.splitlines() if line]
    assert said == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])


def test_adopting_it_changes_three_lines_of_an_agent_at_most():
    agent, _ = BLOCKS[0].split("async def main")
    assert len([line for line in agent.splitlines() if "stoppable" in line.lower()]) <= 3
