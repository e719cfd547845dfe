"""Replaces methods of third-party classes, once per process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_WRAPPED = "__stoppable__"


def wrap(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method of a class, or a function of a module, unless that was done before."""
    real = vars(owner)[name]
    if not hasattr(real, _WRAPPED):
        made = functools.update_wrapper(wrapper(real), real)
        setattr(made, _WRAPPED, True)
        setattr(owner, name, made)
