"""What the library uses of a run beyond what users see is what docs/architecture.md lists."""

import ast
import re
from pathlib import Path

from stoppable import Run
from stoppable._core.node import RunNode

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/stoppable"
PRIVATE = {name for name in dir(RunNode) if name.startswith("_") and not name.endswith("__")}


def private_names(tree):
    """Return the private names of a node that code uses of anything but itself."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE and ast.unparse(node.value) not in {"self", "cls"}
    }


def documented():
    _, _, text = (ROOT / "docs/architecture.md").read_text().partition("\n## A run and the node behind it\n")
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_what_a_node_has_beyond_a_run_is_documented():
    assert sorted(documented()) == sorted(name for name in set(dir(RunNode)) - set(dir(Run)) if name[0] != "_")


def test_nothing_outside_the_core_uses_a_private_name_of_a_node():
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if path.relative_to(SOURCE).parts[0] != "_core" and (names := private_names(ast.parse(path.read_text())))
    }
    assert not found


def test_a_private_name_is_seen_wherever_the_node_comes_from():
    code = "self._mark; run._mark; self.run._settle_here(); RunNode._conclude; [each._later for each in runs]"
    assert private_names(ast.parse(code)) == {"_mark", "_settle_here", "_conclude", "_later"}


def test_users_cannot_create_a_run_by_hand():
    try:
        Run()
    except TypeError as error:
        assert "abstract" in str(error)
    else:
        raise AssertionError("a run that no engine executes")
