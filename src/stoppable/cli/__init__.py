"""The command line: ``stoppable``, or ``python -m stoppable``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; a missing extra is one clear sentence."""
    try:
        from stoppable.cli.app import app  # noqa: PLC0415 - it needs an extra
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "stoppable":
            raise
        sys.exit(f'error: the command line needs {error.name}, which is not installed: pip install "stoppable[cli]"')
    app()
