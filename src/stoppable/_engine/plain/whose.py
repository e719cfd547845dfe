"""Decides whether a thread executes the user's code, which takes part in the run, or a library's.

The file of the module decides, because users and libraries both set the daemon flag.
"""

from __future__ import annotations

import contextvars
import functools
import os
import site
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import MethodType
from typing import Any

_WRAPPERS = 10
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_EXAMPLES = tuple(f"{_PACKAGE}{name}{os.sep}" for name in ("demo", "testing"))  # in this package, but user code


@functools.cache  # cached, and imported late: importing sysconfig takes longer than importing stoppable
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415

    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(site.getsitepackages())
    found.add(site.getusersitepackages())
    return (*(folder + os.sep for folder in found), "<frozen", _PACKAGE)


_included: tuple[str, ...] = ()


def include(modules: Iterable[str]) -> None:
    """Count installed modules, and those below them, as user code, besides those of earlier calls."""
    global _included
    _included = tuple(dict.fromkeys((*_included, *modules)))


def forget_included() -> None:
    """Count no installed modules as user code."""
    global _included
    _included = ()


def behind(function: Any) -> Any:
    """Return the function that a partial, a bound method, ``Context.run`` or a decorator calls; None if it is in C."""
    for _ in range(_WRAPPERS):
        if isinstance(function, functools.partial):
            is_context_run = isinstance(getattr(function.func, "__self__", None), contextvars.Context)
            function = function.args[0] if is_context_run and function.args else function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, MethodType):
            function = function.__func__
        elif hasattr(function, "__code__"):
            return function
        else:
            function = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself
    return None


def name_of(function: object) -> str | None:
    """Return the name under which a call of a function is listed."""
    found = behind(function)
    name = getattr(function if found is None else found, "__qualname__", None)
    return name if isinstance(name, str) else None


def is_users(function: object) -> bool:
    """Return whether a function is user code: not in the standard library, an installed package or stoppable."""
    found = behind(function)
    if found is None:
        return False
    module = getattr(found, "__module__", None) or ""
    # Prefer the module's file: compiled code names a file of the machine that it was built on.
    file = getattr(sys.modules.get(module), "__file__", None) or found.__code__.co_filename
    return _is_included(module) or is_users_file(file)


def is_users_file(file: str) -> bool:
    """Return whether the code in a file is user code."""
    return file.startswith(_EXAMPLES) or not file.startswith(_library_folders())


def _is_included(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _included)


def is_users_thread(thread: threading.Thread) -> bool:
    """Return whether a thread executes the user's code."""
    return is_users(_executed_by(thread))


def module_of_thread(thread: threading.Thread) -> str:
    """Return the name of the module whose code a thread executes."""
    executed = _executed_by(thread)
    found = behind(executed)
    return getattr(executed if found is None else found, "__module__", None) or type(thread).__module__


def _executed_by(thread: threading.Thread) -> Any:
    """Return what a thread executes: its target, or its ``run`` if a class overrides that."""
    owner = next(cls for cls in type(thread).__mro__ if "run" in vars(cls))
    if owner is threading.Thread:
        target: Callable[..., object] | None = getattr(thread, "_target", None)
        return functools.partial(target, *getattr(thread, "_args", ())) if callable(target) else None
    if owner is threading.Timer:
        return thread.function  # type: ignore[attr-defined]
    return vars(owner)["run"]
