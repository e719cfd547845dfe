"""The command line: ``stoppable``, or ``python -m stoppable``."""

from __future__ import annotations

import gc
import io
import os
import sys

from stoppable._extras import pip_install

_COMPLETION = "_STOPPABLE_COMPLETE"


def main() -> None:
    """Run the command; a missing extra is one clear sentence."""
    gc.disable()  # what is imported stays: to look for garbage in it takes a tenth of the time of a short command
    _open_what_is_closed()
    _write_what_has_no_encoding()
    try:
        from stoppable.cli.app import command_line  # noqa: PLC0415 - it needs an extra

        # A shell that completes a line has it in its environment.
        app = command_line() if _COMPLETION in os.environ else command_line(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "stoppable":
            raise
        sys.exit(f"error: the command line needs {error.name}, which is not installed: {pip_install('cli')}")
    gc.freeze()
    gc.enable()
    app()


def _open_what_is_closed() -> None:
    """Take the first three descriptors: a store that got one of them would be written to by every print."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - it takes no name
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for good


def _write_what_has_no_encoding() -> None:
    """Write what the encoding of the output does not have, as a check mark in Latin 1, in another way."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
