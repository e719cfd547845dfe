"""The command line: ``stoppable``, or ``python -m stoppable``."""

from __future__ import annotations

import gc
import io
import os
import sys

from stoppable._extras import typed_again

_COMPLETION = "_STOPPABLE_COMPLETE"


def main() -> None:
    """Run the command; a missing extra is one clear sentence."""
    gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the time of a short command
    _reopen_closed_streams()
    _escape_unencodable()
    try:
        from stoppable.cli.command_line import command_line  # noqa: PLC0415 - it needs an extra

        # A shell that completes a line has it in its environment.
        app = command_line() if _COMPLETION in os.environ else command_line(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "stoppable":
            raise
        sys.exit(f"error: the command line needs {error.name}, which is not installed: {typed_again(sys.argv[1:])}")
    gc.freeze()
    gc.enable()
    app()


def _reopen_closed_streams() -> None:
    """Reopen closed stdin, stdout and stderr on the null device.

    Otherwise the file of a store could get descriptor 1, and ``print`` would write into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no name
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for good


def _escape_unencodable() -> None:
    """Escape characters that the encoding of the output lacks, such as a check mark in Latin-1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
