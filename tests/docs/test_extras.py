"""What users install is an extra; what only this repository needs is a dependency group."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_the_makefile_knows_the_extras_from_the_groups():
    [line] = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(line.split()) == set(EXTRAS)
    assert not set(EXTRAS) & set(PROJECT["dependency-groups"]), "a name means one of them"


def test_every_adapter_has_an_extra():
    adapters = {file.parent.name for file in (ROOT / "src/stoppable/adapters").glob("*/__init__.py")}
    assert adapters - {"a2a_langgraph"} <= set(EXTRAS), "that one is installed with both of its extras"


def test_no_user_gets_a_tool_for_tests():
    installed = " ".join(one for extra in EXTRAS.values() for one in extra)
    assert not re.search(r"pytest|hypothesis|coverage|mypy|ruff", installed)
