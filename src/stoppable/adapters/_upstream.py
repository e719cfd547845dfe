"""What adapters need of the packages that they adapt: names that are found, checked, and replaced."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

Parameters: TypeAlias = Sequence[object]
"""The first parameters of a function, by name; after ``...`` the others only have to be among the rest."""

_WRAPPED: Final = "__stoppable__"


def find(path: str) -> Any:
    """Return what ``module:name`` or ``module:Class.name`` names, or None in a version that does not have it."""
    module, _, names = path.partition(":")
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError:
        return None
    for name in names.split("."):
        value = getattr(value, name, None)
    return value


def missing(functions: Mapping[str, Parameters], texts: Mapping[str, Collection[str]] | None = None) -> list[str]:
    """Return the paths that the installed version lacks or has in another form, and the lines that a module lacks.

    ``texts`` is for what nothing but the source of a module shows, such as the attributes that an ``__init__`` sets.
    """
    lacking = [path for path, parameters in functions.items() if not _takes(find(path), parameters)]
    return lacking + [
        f"{module}:{line.strip(' =(,')}"
        for module, lines in (texts or {}).items()
        for line in lines
        if line not in _source(module)
    ]


def _takes(value: Any, parameters: Parameters) -> bool:
    if not parameters:
        return value is not None
    if not callable(value):
        return False
    there = list(inspect.signature(value).parameters)
    first = list(parameters[: parameters.index(...)] if ... in parameters else parameters)
    return there[: len(first)] == first and {*parameters} - {...} <= {*there}


def _source(module: str) -> str:
    try:
        return inspect.getsource(importlib.import_module(module))
    except (ModuleNotFoundError, OSError):
        return ""


def require(package: str, lacking: Sequence[str]) -> None:
    """Raise RuntimeError if the installed version of a package lacks a name."""
    if lacking:
        version = importlib.metadata.version(package)
        raise RuntimeError(
            f"{package} {version} is not supported: it lacks {', '.join(lacking)}. "
            "Install a version that its page in the documentation names, or a newer stoppable"
        )


def is_wrapped(function: object) -> bool:
    """Return whether a function is a replacement."""
    return hasattr(function, _WRAPPED)


def mark(replacement: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a replacement look like the function that it replaces, and return it."""
    functools.update_wrapper(replacement, real)
    setattr(replacement, _WRAPPED, True)
    return replacement


def wrap(owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method of a class, or a function of a module, unless that was done before."""
    attribute = vars(owner)[name]
    real = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
    if not is_wrapped(real):
        replacement = mark(wrapper(real), real)
        setattr(owner, name, staticmethod(replacement) if isinstance(attribute, staticmethod) else replacement)
