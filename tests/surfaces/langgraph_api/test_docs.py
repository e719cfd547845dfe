"""Every Python block of the page about the LangGraph API is executed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/how-to/langgraph-api.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_page_run(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say.
    promised = re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])
    assert promised
    assert done.stdout.splitlines() == promised


def test_all_blocks_are_python_or_what_a_page_of_the_web_has():
    assert set(re.findall(r"^```(\w+)$", PAGE.read_text(), re.MULTILINE)) == {"python", "ts"}
