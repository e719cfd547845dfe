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
    """Return the function that a callable finally calls; it decides whether the call is async or a generator."""
    inner = behind(function)
    return inner if inspect.isroutine(inner) else type(inner).__call__
