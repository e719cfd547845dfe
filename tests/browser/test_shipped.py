"""What is shipped: small, readable, and without a way for text to become markup."""

import re
from pathlib import Path

import stoppable.server

UI = Path(stoppable.server.__file__).parent / "ui"
FILES = sorted(path for path in UI.rglob("*") if path.is_file())
BUTTON = "stoppable-button.js"  # has to be one file, so that other pages can embed it


def test_everything_together_is_below_200_kb():
    assert sum(path.stat().st_size for path in FILES) < 200_000


def test_each_module_is_below_300_lines_and_the_button_below_650():
    lines = {path.name: len(path.read_text().splitlines()) for path in FILES if path.suffix == ".js"}
    assert {name: count for name, count in lines.items() if count > (650 if name == BUTTON else 300)} == {}


def test_nothing_turns_text_into_markup_or_comes_from_elsewhere():
    for path in FILES:
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            path
        )
        assert not re.search(r"@import|url\(|from \"http|import\(\"http", text), path
    assert "import" not in re.sub(r"/\*.*?\*/|`.*?`", "", (UI / BUTTON).read_text(), flags=re.DOTALL)
