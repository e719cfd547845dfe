"""Shared by the tests of single parts."""

import importlib
import sys

import pytest


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """Make a module out of its text: an agent process can only be given what it can import."""
    made = []

    def make(name, source):
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        sys.modules.pop(name, None)
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)
