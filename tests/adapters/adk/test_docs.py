"""Every code block of the pages about ADK is executed, where google-adk is installed."""

import re
from pathlib import Path

import pytest

from .processes import process

DOCS = Path(__file__).parents[3] / "docs"
PAGES = [DOCS / "how-to/adk.md", DOCS / "reference/adk.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [code for page in PAGES for code in BLOCK.findall(page.read_text())]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_blocks_of_the_pages_run(warm, tmp_path, number):
    (tmp_path / "agents").mkdir()
    with process("-c", BLOCKS[number], cwd=tmp_path) as made:
        code, output = made.finish()
    assert code == 0, output
    # What a block prints is what its comments say.
    said = [line for line in output.splitlines() if line]
    promised = re.findall(r"print\(.*\)  # (.*)", BLOCKS[number])
    assert sorted(said) == sorted(promised)
