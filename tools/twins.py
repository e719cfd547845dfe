"""Makes blocking code from async code: each file of a folder ``_async`` becomes one of the folder ``_sync`` beside it.

    python tools/twins.py           # make them
    python tools/twins.py --check   # fail if one is stale

``primitives.py`` is written by hand in both folders: it has what differs in more than ``async`` and ``await``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stoppable"
BY_HAND = {"__init__.py", "primitives.py"}
HEADER = "# Made from ../_async/{name} by `make twins`: change that file, not this one.\n"
WORDS = {
    "_async": "_sync",
    "AbstractAsyncContextManager": "AbstractContextManager",
    "asynccontextmanager": "contextmanager",
    "aclosing": "closing",
    "AsyncCalls": "Calls",
    "AsyncClient": "Client",
    "AsyncClientRun": "ClientRun",
    "AsyncBaseTransport": "BaseTransport",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
}


def make(into: Path) -> dict[Path, Path]:
    """Make all twins below a folder; return where each belongs."""
    twins: dict[Path, Path] = {}
    for source in sorted(SOURCE.rglob("_async/*.py")):
        if source.name in BY_HAND:
            continue
        home = source.parent.with_name("_sync") / source.name
        place = into / source.relative_to(SOURCE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, place)
        made = place.parent.with_name("_sync") / source.name
        rule = unasync.Rule(f"{place.parent}/", f"{made.parent}/", additional_replacements=WORDS)
        unasync.unasync_files([str(place)], [rule])
        made.write_text(HEADER.format(name=source.name) + made.read_text())
        twins[made] = home
    config = ["--config", str(ROOT / "pyproject.toml"), "--quiet"]
    files = [str(made) for made in twins]
    # What cannot be fixed is reported where the twins are at home.
    for command in (["check", "--fix", "--exit-zero"], ["format"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, *config, *files], check=True, capture_output=True)
    return twins


def main() -> int:
    """Make the twins, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a twin is stale")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        twins = make(Path(folder))
        stale = {made: home for made, home in twins.items() if not _is_alike(made, home)}
        for made, home in stale.items():
            if options.check:
                print(f"{home.relative_to(ROOT)} is stale: run `make twins`", file=sys.stderr)
            else:
                shutil.copy(made, home)
    return 1 if options.check and stale else 0


def _is_alike(made: Path, home: Path) -> bool:
    return home.exists() and made.read_text() == home.read_text()


if __name__ == "__main__":
    sys.exit(main())
