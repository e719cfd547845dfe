"""The map in docs/architecture.md names what is there, and nothing else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/stoppable"
MAP = (ROOT / "docs/architecture.md").read_text()


def test_the_folder_list_names_every_package():
    packages = {str(file.parent.relative_to(SOURCE)) for file in SOURCE.rglob("__init__.py")} - {"."}
    folders = MAP.partition("\n## Where a change belongs\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([\w/]+)` \|", folders, re.MULTILINE)) == packages


def test_every_file_that_a_flow_passes_is_there():
    drawn = "".join(re.findall(r"```text\n(.*?)```", MAP, re.DOTALL))
    names = set(re.findall(r"\b[\w/]+\.py\b", drawn))
    assert names, "the flows are drawn"
    files = [str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py")]
    assert [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


def test_no_file_of_the_server_is_too_small_to_be_looked_for():
    small = [file for file in (SOURCE / "server").rglob("*.py") if len(file.read_text().splitlines()) < 40]
    assert {file.name for file in small} <= {"__init__.py"}, "merge it with what it is read together with"
