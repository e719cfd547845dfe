"""The page about openai-agents: its example runs, prints what it says, and adopting it is three lines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/how-to/openai-agents.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
_MOST_LINES = 3
DEADLINE = 300  # the import alone takes minutes on a machine that is busy enough


@pytest.mark.timeout(DEADLINE + 30)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_page_print_what_their_comments_say(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])


def test_adopting_it_changes_three_lines():
    changed = [line for line in BLOCKS[0].splitlines() if re.search(r"# (new|was: .*)$", line)]
    assert 0 < len(changed) <= _MOST_LINES
    assert all("stoppable" in line or "openai_agents" in line for line in changed)
    unmarked = [line for line in BLOCKS[0].splitlines() if line not in changed]
    asks_to_stop = ("stop(", "outcome()", "receipt", "stoppable.testing")  # what shows the stop, not what adopts it
    assert [line for line in unmarked if "stoppable" in line and not any(word in line for word in asks_to_stop)] == []
