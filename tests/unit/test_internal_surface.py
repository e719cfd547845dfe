"""The private names of a run that packages above the core use are those that docs/architecture.md lists."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from stoppable._core.run import Run

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/stoppable"
PRIVATE = {name for name in dir(Run) if name.startswith("_") and not name.endswith("__")}


def used(tree):
    """Return the private names of a run that code uses of anything but itself."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and ast.unparse(node.value) not in {"self", "cls"}
    }


def documented():
    """Return the names that each package may use."""
    _, _, text = (ROOT / "docs/architecture.md").read_text().partition("\n## What the library itself uses of a run\n")
    header, _, *rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    packages = re.findall(r"`(\w+)`", header)
    allowed = defaultdict(set)
    for row in rows:
        names, _, *cells = row.strip("|").split("|")
        for package, cell in zip(packages, cells, strict=True):
            allowed[package].update(re.findall(r"`(\w+)`", names if cell.strip() == "yes" else cell))
    return dict(allowed)


def test_packages_above_the_core_use_the_private_names_of_a_run_that_are_documented_and_no_others():
    found = defaultdict(set)
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0]
        if package != "_core" and (names := used(ast.parse(path.read_text()))):
            found[package] |= names
    assert dict(found) == documented()


def test_a_private_name_is_seen_wherever_the_run_comes_from():
    code = "self._members; run._closed; self.run._settle(); Run._tell([]); [each._list for each in runs]; run.outcome"
    assert used(ast.parse(code)) == {"_closed", "_settle", "_tell", "_list"}
