"""What is behind something that can be called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a partial binds arguments to, or the function itself."""
    return function.func if isinstance(function, functools.partial) else function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that runs in the end, also for an object that can be called: it tells of what kind it is."""
    inner = behind(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__
