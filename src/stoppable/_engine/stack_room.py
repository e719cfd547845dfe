"""Checks that the stack has room for the beginning and the end of a run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

_SHALLOW = 150  # deeper stacks are checked; nearly always there are fewer frames
_NEEDED = 40  # the longest path from an agent's call to the end of its run takes 20, with a store


def require() -> None:
    """Raise RecursionError before a run begins, if its beginning or end could run out of stack.

    In the middle of either, the error would leave a run behind that never ends.
    """
    try:
        sys._getframe(_SHALLOW)
    except ValueError:
        return
    _dive(_NEEDED)


def _dive(frames: int) -> None:
    if frames:
        _deeper(frames - 1)


# From 3.12 on, calls that pass through C have a separate limit; before, every call counts against the same one.
_deeper: Callable[[int], None] = functools.partial(_dive) if sys.version_info >= (3, 12) else _dive
