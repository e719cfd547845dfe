"""Every code block of the pages about MCP is executed, where mcp is installed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/mcp.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(tmp_path, number):
    command = [sys.executable, "-W", "ignore", "-c", BLOCKS[number]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    # What a block prints is what its comments say.
    said = [line for line in done.stdout.splitlines() if line]
    promised = re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])
    assert said == promised
