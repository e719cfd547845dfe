"""Every code block of the page about the OpenAI client is executed, where that is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/openai.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_page_print_what_their_comments_say(tmp_path, number):
    file = tmp_path / "example.py"  # smolagents reads the source of its tools
    file.write_text(BLOCKS[number])
    command = [sys.executable, "-W", "ignore", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])
