"""Decides whether a thread takes part in the run: it executes the user's code, or works for it.

The file of the module decides whose code it is, because users and libraries both set the daemon flag. A thread that
executes a function of a library works for the user's code if that code started it, or if it was given a function or
coroutine of the user. All other threads are a library's own, and so are those of pools, whose calls take part instead,
and those of event loops and servers that run for ever.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import os
import site
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, MethodType
from typing import Any

OURS = "stoppable."
_POOLS = {
    "concurrent.futures.thread": ("_worker",),
    "multiprocessing.pool": ("worker", "Pool._handle_workers", "Pool._handle_tasks", "Pool._handle_results"),
}
"""The functions that the threads of pools execute, by module; the first one executes the calls."""
_SERVERS = ("run_forever", "serve_forever")  # of event loops and servers, which serve everybody

_WRAPPERS = 10
_MOST_ARGUMENTS = 100
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_EXAMPLES = tuple(f"{_PACKAGE}{name}{os.sep}" for name in ("demo", "testing"))  # in this package, but user code


@functools.cache  # cached, and imported late: importing sysconfig takes longer than importing stoppable
def _library_folders() -> tuple[str, ...]:
    import sysconfig  # noqa: PLC0415

    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    return (*(folder + os.sep for folder in folders), "<frozen", _PACKAGE)


_included: tuple[str, ...] = ()


def include(modules: Iterable[str]) -> None:
    """Count installed modules, and those below them, as user code, besides those of earlier calls."""
    global _included
    _included = tuple(dict.fromkeys((*_included, *modules)))


def forget_included() -> None:
    """Count no installed modules as user code."""
    global _included
    _included = ()


def unwrap(function: Any) -> Any:
    """Return the function that a partial, a bound method, ``Context.run`` or a decorator calls; None if it is in C."""
    function = _unwrap(function)
    if not hasattr(function, "__code__"):
        function = _unwrap(getattr(type(function), "__call__", None))  # noqa: B004 - the method itself
    return function if hasattr(function, "__code__") else None


def _unwrap(function: Any) -> Any:
    for _ in range(_WRAPPERS):
        if isinstance(function, functools.partial):
            function = _run_by_context(function) or function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, MethodType):
            function = function.__func__
        else:
            break
    return function


def _run_by_context(call: functools.partial[Any]) -> Any:
    """Return the call that a context makes, which may be made by another context in turn; None if this is no such."""
    if not isinstance(getattr(call.func, "__self__", None), contextvars.Context) or not call.args:
        return None
    function, *arguments = call.args
    return functools.partial(function, *arguments) if callable(function) else None


def name_of(function: object) -> str | None:
    """Return the name under which a call of a function is listed."""
    inner = unwrap(function)
    name = getattr(_unwrap(function) if inner is None else inner, "__qualname__", None)
    return name if isinstance(name, str) else None


def is_users(function: object) -> bool:
    """Return whether a function is user code: not in the standard library, an installed package or stoppable."""
    inner = unwrap(function)
    if inner is None:
        return False
    module = getattr(inner, "__module__", None) or ""
    # Prefer the module's file: compiled code names a file of the machine that it was built on.
    file = getattr(sys.modules.get(module), "__file__", None) or inner.__code__.co_filename
    return _is_included(module) or is_users_file(file)


def is_users_file(file: str) -> bool:
    """Return whether the code in a file is user code."""
    return file.startswith(_EXAMPLES) or not file.startswith(_library_folders())


def _is_included(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _included)


def is_users_thread(thread: threading.Thread, starter: FrameType | None = None) -> bool:
    """Return whether a thread executes the user's code, or works for it; ``starter`` is the frame that starts it."""
    code = _executed_by(thread)
    if is_users(code):
        return True
    module = module_of_thread(thread)
    if not isinstance(code, functools.partial) or _serves_others(name_of(code) or "", module):
        return False
    if _is_started_by_user(thread, starter):
        return True
    return not module.startswith(OURS) and any(map(_is_users_work, _arguments(code)))


def _serves_others(name: str, module: str) -> bool:
    return name in _POOLS.get(module, ()) or name.rpartition(".")[2] in _SERVERS


def is_server(frame: FrameType) -> bool:
    """Return whether a frame is that of an event loop or a server that runs for ever."""
    return frame.f_code.co_name in _SERVERS and not _is_users_frame(frame)


def _is_started_by_user(thread: threading.Thread, frame: FrameType | None) -> bool:
    # Code that wraps Thread.start has the thread among its arguments: look for the code that called it.
    while frame is not None and _has_argument(frame, thread):
        frame = frame.f_back
    return frame is not None and _is_users_frame(frame)


def _is_users_frame(frame: FrameType) -> bool:
    return _is_included(frame.f_globals.get("__name__") or "") or is_users_file(frame.f_code.co_filename)


def _has_argument(frame: FrameType, thread: threading.Thread) -> bool:
    code, values = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return any(values.get(name) is thread for name in names)


def _arguments(call: functools.partial[Any]) -> list[Any]:
    """Return the arguments of a call, with those of the partials among them."""
    parts: list[Any] = [call]
    for value in parts:
        if isinstance(value, functools.partial) and len(parts) < _MOST_ARGUMENTS:
            parts += [value.func, *value.args, *value.keywords.values()]
    return parts[1:]


def _is_users_work(value: object) -> bool:
    """Return whether a value is a coroutine of the user, or something of the user that can be called."""
    if inspect.iscoroutine(value):
        return is_users_file(value.cr_code.co_filename)
    return callable(value) and is_users(value)


def is_worker_of_pool(thread: threading.Thread) -> bool:
    """Return whether a thread executes the calls in a pool."""
    return name_of(_executed_by(thread)) in _POOLS.get(module_of_thread(thread), ())[:1]


def module_of_thread(thread: threading.Thread) -> str:
    """Return the name of the module whose code a thread executes."""
    code = _executed_by(thread)
    inner = unwrap(code)
    return getattr(code if inner is None else inner, "__module__", None) or type(thread).__module__


def _executed_by(thread: threading.Thread) -> Any:
    """Return what a thread executes: the call of its target, or its ``run`` if a class overrides that."""
    owner = next(cls for cls in type(thread).__mro__ if "run" in vars(cls))
    values: dict[str, Any] = vars(thread)
    if owner is threading.Thread:
        target, args, kwargs = values.get("_target"), values.get("_args", ()), values.get("_kwargs") or {}
        return functools.partial(target, *args, **kwargs) if callable(target) else None
    if owner is threading.Timer:
        return functools.partial(values["function"], *values["args"], **values["kwargs"])
    return vars(owner)["run"]
