"""Every code block of the pages about CrewAI is executed, and adopting the adapter takes three lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .world import DEADLINE

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/crewai.md", DOCS / "reference/crewai.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.timeout(5 * DEADLINE + 30)  # the import takes long on a busy machine
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(tmp_path, number):
    (tmp_path / "block.py").write_text(BLOCKS[number])
    command = [sys.executable, "-W", "ignore", "block.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=5 * DEADLINE, check=False
    )
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say; CrewAI draws panels.
    printed = [line for line in done.stdout.splitlines() if line and line[0] not in "╭│╰"]
    assert printed == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])


def test_adopting_it_changes_three_lines():
    lines = BLOCKS[0].splitlines()
    changed = [line for line in lines if re.search(r"# (new|was: .*)$", line)]
    assert 0 < len(changed) <= 3
    asks_to_stop = ("stop(", "outcome()", "receipt", "stoppable.testing")  # what shows the stop, not what adopts it
    unmarked = [line for line in lines if line not in changed and not any(word in line for word in asks_to_stop)]
    assert [line for line in unmarked if "stoppable" in line] == []
