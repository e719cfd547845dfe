"""``instrument()`` and ``uninstrument()``."""

from __future__ import annotations

import concurrent.futures.thread
import os
import queue
import subprocess
import threading
from collections.abc import Iterable
from types import ModuleType

from stoppable._engine import executors
from stoppable._engine.instrumentation import patches, processes, threads, user_code
from stoppable._engine.outgoing import (
    calls,
    for_aiohttp,
    for_databases,
    for_grpc,
    for_http_client,
    for_httpx,
    for_websockets,
)

_spared_names: dict[str, None] = {}
"""The programs that any call of ``instrument()`` spares, in their order."""


def instrument(*, include: Iterable[str] = (), spare: Iterable[str] = ()) -> None:
    """Make the requests, threads, executor calls and processes that a run's code starts take part in the run.

    They are listed in the receipt, a stop ends them where that is possible, and the run is not ``stopped`` before they
    have ended; after a stop none is started, except by clean-up. Outside runs and in ``detached()`` nothing changes. A
    thread takes part if it executes the user's code; ``include`` names installed modules that count as user code, and
    those of databases whose statements are boundaries: ``"asyncpg"``, ``"psycopg"``, ``"redis"``, ``"sqlalchemy"``,
    ``"sqlite3"``.
    ``spare`` names shared programs that a command may start (``"tmux: server"``, ``"gpg-agent"``) and hosts
    (``"telemetry.example.com"``); they are left alone.
    Further calls, such as those of adapters, add to both.
    """
    names = tuple(include)
    user_code.include(names)
    _spared_names.update(dict.fromkeys(spare))
    processes.spare(_spared_names)
    calls.spare(_spared_names)
    patches.switch(on=True)
    patches.put(threading.Thread, "start", threads.start_of)
    patches.put(concurrent.futures.thread.ThreadPoolExecutor, "submit", executors.submit_of)
    patches.put(concurrent.futures.Future, "add_done_callback", executors.add_done_callback_of)
    patches.put(queue.Queue, "put", threads.queue_put_of)
    patches.put(queue.Queue, "get", threads.queue_get_of)
    patches.put(subprocess.Popen, "__init__", processes.popen_of)
    for name, make in (("fork", processes.fork_of), ("forkpty", processes.forkpty_of)):
        if hasattr(os, name):
            patches.put(os, name, make)
    for module, install in _LATER.items():
        patches.when_imported(module, install)
    for_databases.include(names)


def uninstrument() -> None:
    """Undo ``instrument()``; threads and processes that already take part continue to do so."""
    user_code.forget_included()
    for_databases.forget_included()
    _spared_names.clear()
    processes.spare(())
    calls.spare(())
    patches.switch(on=False)
    patches.wait_no_longer()
    patches.take_away()


def _anyio(module: ModuleType) -> None:
    patches.put(module.AsyncIOBackend, "run_sync_in_worker_thread", executors.run_sync_of)


def _uvloop(module: ModuleType) -> None:
    for name in ("subprocess_exec", "subprocess_shell"):
        patches.put(module.Loop, name, processes.uvloop_spawn_of)


def _multiprocessing(module: ModuleType) -> None:
    patches.put(module.BaseProcess, "start", processes.process_start_of)


def _multiprocessing_pool(module: ModuleType) -> None:
    patches.put(module.Pool, "__init__", processes.pool_init_of)
    for name in ("apply_async", "_map_async", "imap", "imap_unordered"):
        patches.put(module.Pool, name, processes.pool_method_of)
    for result in (module.ApplyResult, module.IMapIterator):
        patches.put(result, "__init__", processes.pool_result_of)


def _process_pool(module: ModuleType) -> None:
    patches.put(module.ProcessPoolExecutor, "__init__", processes.pool_init_of)
    patches.put(module.ProcessPoolExecutor, "submit", processes.pool_submit_of)


_LATER = {
    "anyio._backends._asyncio": _anyio,
    "concurrent.futures.process": _process_pool,
    "multiprocessing.pool": _multiprocessing_pool,
    "multiprocessing.process": _multiprocessing,
    "uvloop": _uvloop,
    "socket": calls.install_sockets,
    "http.client": for_http_client.install,
    "urllib3.connection": for_http_client.install_urllib3,
    "requests.sessions": for_http_client.install_requests,
    "httpx": for_httpx.install,
    "httpx2": for_httpx.install,
    "aiohttp": for_aiohttp.install,
    "grpc._channel": for_grpc.install,
    "grpc.aio._channel": for_grpc.install_aio,
    "websockets.asyncio.client": for_websockets.install,
    "websockets.sync.client": for_websockets.install,
}
"""Optional libraries, which are patched when they are imported."""
