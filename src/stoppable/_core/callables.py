"""Finds the function behind a callable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def behind(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a partial binds arguments to, or the function itself."""
    return function.func if isinstance(function, functools.partial) else function


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that is finally called, also for a callable object; its kind (async, generator) counts."""
    inner = behind(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__
