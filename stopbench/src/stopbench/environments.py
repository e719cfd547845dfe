"""What a subject says about itself without being imported, and the environment in which it can be."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SUBJECTS = Path(__file__).with_name("subjects")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The attributes of a subject, read from its file: its framework is not installed where this is executed."""

    name: str
    file: Path
    about: str
    packages: tuple[str, ...] = ()
    stoppable: str = "stoppable"
    cancel: str = "`task.cancel()`"
    sub_agent: str | None = "task"
    serves: bool = False
    final_tool: str | None = None


def describe(file: Path) -> Description:
    """Read the file of a subject."""
    tree = ast.parse(file.read_text())
    values = {}
    for node in (node for each in tree.body if isinstance(each, ast.ClassDef) for node in each.body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            values[node.targets[0].id.lower()] = ast.literal_eval(node.value)
    about = (ast.get_docstring(tree) or "").partition("\n")[0]
    return Description(name=file.stem.replace("_", "-"), file=file, about=about, **values)


def find(name: str) -> Description:
    """Return the subject of this package with a name, or that in a file."""
    file = Path(name) if name.endswith(".py") else SUBJECTS / f"{name.replace('-', '_')}.py"
    if not file.exists():
        raise LookupError(f"No subject {name!r}. There are: {', '.join(names())}; a file is one too.")
    return describe(file.resolve())


def names() -> list[str]:
    """Return the names of the subjects of this package."""
    return sorted(file.stem.replace("_", "-") for file in SUBJECTS.glob("*.py"))


def make(subject: Description, folder: Path, stoppable: str | None, *, as_installed: bool) -> str:
    """Make the environment of a subject, with the newest packages, and return its interpreter.

    `stoppable` is a folder with its source, instead of the package of the index; with `as_installed` an environment
    that is there is not brought up to date.
    """
    directory = folder / subject.name
    python = directory / "bin/python"
    is_there = python.exists()
    if not is_there:
        _uv("venv", "-q", "--python", sys.executable, str(directory))
    if not (is_there and as_installed):
        extras = "".join(subject.stoppable.partition("[")[1:])
        ours = [subject.stoppable] if stoppable is None else ["-e", stoppable + extras]
        _uv("pip", "install", "-q", "--upgrade", *subject.packages, *ours, environment=directory)
    return str(python)


def _uv(*arguments: str, environment: Path | None = None) -> None:
    command = [sys.executable, "-m", "uv"] if importlib.util.find_spec("uv") else [shutil.which("uv") or "uv"]
    env = os.environ if environment is None else os.environ | {"VIRTUAL_ENV": str(environment)}
    subprocess.run([*command, *arguments], env=env, check=True)
