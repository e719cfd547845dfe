"""Whether the stack has room for what happens at the edge of a run."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

_SHALLOW = 150  # from here on, look closely; nearly always there are fewer frames
_NEEDED = 40  # the deepest way from an agent's call to the end of its run takes 20, with a store


def require() -> None:
    """Raise RecursionError now, where nothing has begun, if the edge of a run could run out of stack.

    In the middle of a run's beginning or end, it would leave a run behind that nobody ends.
    """
    try:
        sys._getframe(_SHALLOW)
    except ValueError:
        return
    _dive(_NEEDED)


def _dive(frames: int) -> None:
    if frames:
        _deeper(frames - 1)


# From 3.12 on, calls that pass through C have a limit of their own; before, every call counts against the same one.
_deeper: Callable[[int], None] = functools.partial(_dive) if sys.version_info >= (3, 12) else _dive
