"""Folders for the files of a benchmark, gone when it ends."""

from __future__ import annotations

import tempfile
from pathlib import Path

_all = tempfile.TemporaryDirectory(prefix="stoppable-bench-")


def folder() -> Path:
    """Return a new one."""
    return Path(tempfile.mkdtemp(dir=_all.name))
