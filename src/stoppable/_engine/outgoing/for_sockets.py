"""Connections that code of a run makes outside every boundary: no stop sees what goes over them, so they are named."""

from __future__ import annotations

import asyncio
import functools
import itertools
import socket
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stoppable._core import context
from stoppable._core.boundary import innermost
from stoppable._core.gate import Role
from stoppable._core.node import RunNode
from stoppable._engine import source_lines, tasks
from stoppable._engine.plain import patches, scopes, whose

_get = context.current.get
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_CLIENTS = frozenset({"aiohttp", "grpc", "http", "httpcore", "httpcore2", "httpx", "httpx2", "urllib3", "websockets"})
"""The packages whose requests are boundaries themselves, unless their hosts are spared."""
_STEP = asyncio.Handle._run.__code__
"""Where an event loop calls a step of a task: the code around it is not that of the task."""


def install(module: ModuleType) -> None:
    """Note the connections of sockets."""
    for name in ("connect", "connect_ex"):
        patches.put(module.socket, name, _connect_of)


def _connect_of(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def connect(self: socket.socket, address: Any) -> Any:
        if _get().run_here() is not None and patches.is_on() and self.family in _INTERNET:
            _note(address)
        return original(self, address)

    return connect


def _note(address: Any) -> None:
    scope = scopes.current()
    run = None if scope is None else scope.run_here()
    if run is None:
        return
    stack = source_lines.frames_of_thread(threading.current_thread())
    frames = list(itertools.takewhile(lambda frame: frame.f_code is not _STEP, stack))
    if any(whose.is_users_file(frame.f_code.co_filename) for frame in frames):
        is_inside = any(innermost(each) is not None for each in run.lineage())
    else:  # a task or a thread of a library, which a look at its boundary would make a participant
        starter = tasks.starter()
        frames += [] if starter is None else tasks.suspended_in(starter.task.get_coro())
        is_inside = any(_has_boundary(each) for each in run.lineage())
    if is_inside or any(str(frame.f_globals.get("__name__")).partition(".")[0] in _CLIENTS for frame in frames):
        return
    host, port, *_ = address if isinstance(address, tuple) else (address, "")
    run.note_unguarded(f"{host}:{port} from {source_lines.place(frames)}")


def _has_boundary(run: RunNode) -> bool:
    return any(member.role is Role.BOUNDARY for member in list(run.members or ()))
