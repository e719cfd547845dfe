"""What is built on the library, and what the documents show, uses no private name of it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoppable
from stoppable import _api

ROOT = Path(__file__).parents[2]
BUILT_ON_IT = sorted(
    path for folder in ("server", "adapters") for path in (ROOT / "src/stoppable" / folder).rglob("*.py")
)
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", BUILT_ON_IT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_server_and_the_adapters_reach_behind_no_supervisor(path):
    private = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.endswith("__")
        and re.search(r"supervisor$", ast.unparse(node.value))
    ]
    assert private == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_document_shows_a_private_name(path):
    assert re.findall(r"stoppable\._\w+", path.read_text()) == []


def test_every_public_name_is_there():
    assert [name for name in stoppable.__all__ if not hasattr(stoppable, name)] == []
    assert set(_api.__all__) < set(stoppable.__all__)


SMALL_RUN = """
import asyncio, sys
import stoppable

async def main():
    await (await stoppable.spawn(asyncio.sleep, 0)).result()

asyncio.run(main())
print(*[name for name in sys.modules if name.startswith("stoppable.")])
"""


def test_a_run_without_a_supervisor_imports_none():
    done = subprocess.run([sys.executable, "-c", SMALL_RUN], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "stoppable._engine.agents" in imported
    assert [name for name in imported if name.startswith(("stoppable.supervisor", "stoppable.records"))] == []
