"""What users install is an extra; what only this repository needs is a dependency group."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from stoppable._extras import pip_install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]


def test_a_name_is_an_extra_or_a_group():
    assert not set(EXTRAS) & set(PROJECT["dependency-groups"])


def test_every_adapter_has_an_extra():
    files = (ROOT / "src/stoppable/adapters").glob("*/__init__.py")
    adapters = {file.parent.name.replace("_", "-") for file in files}
    assert adapters - {"a2a-langgraph"} <= set(EXTRAS), "that one is installed with both of its extras"


def test_an_error_names_a_command_that_works_from_a_clone(tmp_path):
    """Not `stoppable[cli]`, which only an index knows: this is an installation from a folder."""
    folder = re.fullmatch(r'pip install "(.*)\[cli\]" "another"', pip_install("cli", "another"))[1]
    assert Path(folder, "pyproject.toml").is_file()


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        ({"url": "file://{here}", "dir_info": {}}, '"{here}[cli]"'),
        ({"url": "file:///gone", "dir_info": {}}, '"stoppable[cli]"'),
        ({"url": "https://e.org/s.git", "vcs_info": {"vcs": "git"}}, '"stoppable[cli] @ git+https://e.org/s.git"'),
        ({"url": "file://{here}/s.whl", "archive_info": {}}, '"stoppable[cli] @ file://{here}/s.whl"'),
        ({"url": "file:///gone.whl", "archive_info": {}}, '"stoppable[cli]"'),
        ({"url": "https://e.org/s.whl", "archive_info": {}}, '"stoppable[cli] @ https://e.org/s.whl"'),
        (None, '"stoppable[cli]"'),
    ],
)
def test_an_error_names_where_an_installed_copy_came_from(tmp_path, origin, wanted):
    """In a process: a copy of the package, with the record that pip makes of an installation."""
    shutil.copytree(
        ROOT / "src/stoppable", tmp_path / "lib" / "stoppable", ignore=shutil.ignore_patterns("__pycache__")
    )
    record = tmp_path / "lib" / "stoppable-0.1.dist-info"
    record.mkdir()
    (tmp_path / "s.whl").touch()
    (record / "METADATA").write_text("Name: stoppable\nVersion: 0.1\n")
    if origin is not None:
        (record / "direct_url.json").write_text(json.dumps(origin).replace("{here}", str(tmp_path)))
    code = "from stoppable._extras import pip_install; print(pip_install('cli'))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, 'lib'); {code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == f"pip install {wanted.replace('{here}', str(tmp_path))}"


def test_no_user_gets_a_tool_for_tests():
    installed = " ".join(one for extra in EXTRAS.values() for one in extra)
    assert not re.search(r"pytest|hypothesis|coverage|mypy|ruff", installed)
