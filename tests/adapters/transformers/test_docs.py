"""The page about local models: its examples run, print what they say, and adopting the adapter takes three lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/how-to/local-models.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_page_print_what_their_comments_say(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])


def test_adopting_it_changes_three_lines():
    lines = BLOCKS[0].splitlines()
    changed = [line for line in lines if re.search(r"# (new|was: .*)$", line)]
    assert 0 < len(changed) <= 3
    shows_the_stop = ("stop(", "outcome()", "receipt", "import stoppable")
    unmarked = [line for line in lines if line not in changed and not any(word in line for word in shows_the_stop)]
    assert [line for line in unmarked if "stoppable" in line] == []
