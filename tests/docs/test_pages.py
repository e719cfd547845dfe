"""Decisions have a form, words one definition, and the threads a table."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE, DOCS = ROOT / "src/stoppable", ROOT / "docs"
DECISIONS = sorted((DOCS / "decisions").glob("0*.md"))
STARTERS = {"Thread", "BatchThread", "DaemonPool", "ControlThread"}


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name)
def test_a_decision_has_its_number_its_date_its_status_and_alternatives(page):
    text = page.read_text()
    assert text.startswith(f"# {page.name[:4]} ")
    assert re.search(r"\n\n- Date: \d{4}-\d\d-\d\d\n- Status: (accepted|superseded by \[\d{4}\])", text)
    assert re.search(r"\n## Alternatives\n\n- \*\*", text)


def test_the_list_of_decisions_has_their_titles():
    overview = (DOCS / "decisions/README.md").read_text()
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", overview, re.MULTILINE)
    assert listed == [(page.read_text().partition("\n")[0].removeprefix("# "), page.name) for page in DECISIONS]


def test_only_the_glossary_defines_words():
    defining = re.compile(r"^\| \*\*([\w ]+)\*\* \|", re.MULTILINE)
    words = defining.findall((DOCS / "glossary.md").read_text())
    assert len(words) == len(set(words)), "one definition for each word"
    others = [page for page in DOCS.rglob("*.md") if page.name != "glossary.md"]
    defined = {page.name: set(defining.findall(page.read_text())) & set(words) for page in others}
    assert {name: twice for name, twice in defined.items() if twice} == {}


def names_of_threads():
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in STARTERS:
                texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]
                yield from (text for text in texts if isinstance(text, str) and text.startswith("stoppable"))


def test_every_thread_is_in_the_table_of_threads():
    _, _, rest = (DOCS / "architecture.md").read_text().partition("\n## Threads\n")
    table = rest.partition("\n## ")[0]
    names = set(names_of_threads())
    assert len(names) > 10, "they are found"
    assert sorted(name for name in names if f"`{name}" not in table) == []


def test_every_file_that_the_architecture_names_is_there():
    folders = (SOURCE, ROOT / "bench", ROOT / "tests")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in folder.rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", (DOCS / "architecture.md").read_text()))
    assert sorted(name for name in named if not any(file.endswith(f"/{name}") for file in files)) == []
