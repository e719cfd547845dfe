"""How a script ends after Ctrl-C if it does not handle that: with one line and exit code 130, as shells expect."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TypeVar

from stoppable.errors import RunLost

E = TypeVar("E", bound=BaseException)

_EXIT_CODE = 130
_LINE = "_stoppable_line"


def with_one_line(error: E, name: str, *, killed: bool = False) -> E:
    """Return an exception that ends the process without a traceback if it is not caught.

    Otherwise it is an ordinary exception. An existing ``excepthook`` still handles all other exceptions.
    """
    if isinstance(error, RunLost):
        line = f"{name} was stopped by Ctrl-C; something of it may still be alive"
    elif killed:
        line = f"{name} was killed by Ctrl-C; its clean-up may not have run"
    else:
        line = f"{name} was stopped by Ctrl-C"
    setattr(error, _LINE, line)
    if not isinstance(sys.excepthook, _Hook):
        sys.excepthook = _Hook()
    return error


class _Hook:
    """An excepthook for uncaught exceptions."""

    def __init__(self) -> None:
        self._others = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        line = getattr(error, _LINE, None)
        if line is None:
            self._others(kind, error, trace)
            return
        print(line, file=sys.stderr)  # noqa: T201 - Python writes a traceback there
        sys.exit(_EXIT_CODE)
