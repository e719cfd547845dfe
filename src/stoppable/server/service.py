"""``serve``: the server as a process, which stops its runs before it ends."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ipaddress
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn, ParamSpec

import uvicorn
from fastapi import FastAPI

from stoppable import _secrets
from stoppable._core import clock
from stoppable._core.values import PRESSES, Mode
from stoppable.errors import InvalidArgument, StoreError
from stoppable.server import logs
from stoppable.server.app import PrincipalDependency, create_app, lifespan
from stoppable.server.backend import Backend, Routers, Services
from stoppable.server.hosted_agents import CLOSE_SECONDS, AgentLoop, Agents, Lifespan
from stoppable.server.limits import IdleConnections, ServerLimits, bounded_protocol
from stoppable.stores.base import Store
from stoppable.supervisor import SHUTDOWN_MARGIN, Supervisor

_logger = logging.getLogger("stoppable.server")

P = ParamSpec("P")

_LAST_SECONDS = 3  # for responses in progress when all runs have ended


_LOOK_SECONDS = 0.1

_STOPPING = "shutting down: the runs are stopped (%s), which takes %d s at most; Ctrl-C or SIGTERM again %s"

_UNWRITTEN = "the store did not answer in time: the next supervisor that opens it writes down how the runs ended"
_UNWRITTEN_CODE = 5  # the command line's exit code for a store that does not answer


class Service:
    """A server that listens on an address, with its supervisor and a loop for its agents."""

    def __init__(
        self,
        agents: Agents,
        *,
        store: str | Store | None = None,
        ttl: float = 30.0,
        keep_days: float | None = None,
        keep_input: bool = True,
        host: str = "127.0.0.1",
        port: int = 8420,
        api_key: str | None = None,
        principal: PrincipalDependency | None = None,
        lifespan: Lifespan | None = None,
        log_json: bool = False,
        ready: Callable[[str], object] | None = None,
        limits: ServerLimits | None = None,
        allowed_origins: Collection[str] = (),
        allowed_hosts: Collection[str] = (),
        routers: Routers = (),
        services: Services = (),
    ) -> None:
        key = api_key or (_secrets.api_key() if principal is None else None)
        if not is_loopback(host) and key is None and principal is None:
            raise InvalidArgument(
                f"without a key anyone who can reach {host} could stop your runs: "
                "set STOPPABLE_API_KEY or STOPPABLE_API_KEY_FILE, or listen on 127.0.0.1"
            )
        self.supervisor: Supervisor = Supervisor(
            store, ttl=ttl, keep_days=keep_days, keep_input=keep_input, unpickle=False
        )
        self.url: str = ""
        self._store = store
        self._host, self._port, self._ready = host, port, ready
        self._log_json = log_json
        bounds = limits or ServerLimits()
        self.app: FastAPI = create_app(
            self.supervisor,
            agents,
            principal=principal,
            api_key=key,
            agent_loop=AgentLoop(lifespan),
            limits=bounds,
            allowed_origins=allowed_origins,
            allowed_hosts={*allowed_hosts, host},  # all of 127.0.0.0/8 is loopback
            routers=routers,
            services=services,
        )
        self._idle = IdleConnections(bounds.connections, bounds.address_connections)
        self._config = uvicorn.Config(
            self.app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=bounded_protocol(bounds, self._idle),
            ws="none",
            lifespan="off",  # the lifespan is entered here, because uvicorn would log its error and exit
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
        self._server = _Server(self._config, self.app.state.backend, self._listening)
        self._idle.connections = self._server.server_state.connections
        self.app.state.backend.idle = self._idle

    def run(self) -> None:
        """Serve until a signal or ``stop``; then stop the runs, end the streams, and return.

        Raises StoreError if the store does not answer during the shutdown; calls that wait for the store are then given
        up.
        """
        with (
            _secrets.hide(self._store),  # even if the key is not used: processes of agents must not inherit it
            logs.log_to_stderr(as_json=self._log_json),
            _listener(self._host, self._port) as listener,
        ):
            self._config.backlog = self._idle.fit_into_open_files()
            self.app.state.backend.shares.connections = self._idle.limit
            host, port = listener.getsockname()[:2]
            self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            self._server.run(sockets=[listener])

    def stop(self) -> None:
        """Begin to shut down; works from any thread."""
        self._server.should_exit = True

    def _listening(self) -> None:
        if self._ready is not None:
            self._ready(self.url)


def _like(source: Callable[P, object]) -> Callable[[Callable[..., None]], Callable[P, None]]:
    """Give a function the signature of another one."""

    def with_signature(function: Callable[..., None]) -> Callable[P, None]:
        function.__signature__ = inspect.signature(source)  # type: ignore[attr-defined]
        return function

    return with_signature


@_like(Service)
def serve(*args: Any, **options: Any) -> None:
    """Serve agents until a signal; port 0 chooses a free port, and ``ready`` is called with the URL once it listens.

    Async agents run on a separate event loop, so that an agent that blocks does not delay a stop; ``lifespan`` is
    entered on that loop first. Listening on anything but loopback needs a key (``STOPPABLE_API_KEY``) or a principal.
    """
    Service(*args, **options).run()


class _Server(uvicorn.Server):
    """A uvicorn server that stops the runs of this process before it waits for the streams that follow them."""

    def __init__(self, config: uvicorn.Config, backend: Backend, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._backend = backend
        self._listening = listening
        self._presses = 0
        self._drained_by = self._ended_by = math.inf
        self._resources = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the app, or raise its error; then report that the server listens."""
        await self._resources.enter_async_context(lifespan(self._backend))
        await super().startup(sockets)
        self._listening()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, let the runs end while their streams report it, then end the rest."""
        for server in self.servers:
            server.close()
        self._drained_by = self._ended_by = math.inf  # signals before it was open do not count
        self._stop_runs(PRESSES[max(self._presses - 1, 0)])
        await self._in_time(self._backend.drain(), lambda: self._drained_by)
        self._backend.streams.drain()
        await super().shutdown(sockets)
        if not await self._in_time(self._resources.aclose(), lambda: self._ended_by):
            raise StoreError(_UNWRITTEN)

    def _stop_runs(self, mode: Mode) -> None:
        """Stop the runs, and log how long that may take; safe in a signal handler."""
        seconds = self._backend.hurry(mode)
        if seconds:
            next_one = "waits for nothing" if mode is Mode.KILL else "stops them harder"
            # logged by the loop: the handler may have interrupted this thread while it logs
            asyncio.get_running_loop().call_soon_threadsafe(_logger.info, _STOPPING, mode, math.ceil(seconds), next_one)
        self._drained_by = min(self._drained_by, clock.now() + seconds + SHUTDOWN_MARGIN)
        self._ended_by = min(self._ended_by, self._drained_by + _LAST_SECONDS + CLOSE_SECONDS)

    @staticmethod
    async def _in_time(work: Coroutine[Any, Any, None], deadline: Callable[[], float]) -> bool:
        """Await something, and cancel it at the deadline, which a further signal may bring forward."""
        task = asyncio.ensure_future(work)
        while not task.done() and clock.now() < deadline():
            await asyncio.wait([task], timeout=_LOOK_SECONDS)
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_SECONDS + _LOOK_SECONDS)  # the agents' lifespan is left anyway
        return False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Shut down on a signal; unlike uvicorn, does not raise it again, so that the caller of ``serve`` goes on."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's names
        """Shut down; each further signal stops the runs in a harder mode, and the fourth ends the process."""
        self.should_exit = True
        if self._presses == len(PRESSES):
            _leave()
        self._presses += 1
        if self._presses > 1:
            self._stop_runs(PRESSES[self._presses - 1])


def _leave() -> NoReturn:
    """End this process; leaving its event loop normally would wait for the store."""
    _logger.error(_UNWRITTEN)
    os._exit(_UNWRITTEN_CODE)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InvalidArgument(f"cannot listen on {host}:{port}: {error.strerror or error}; use another port") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # A client that reads nothing would otherwise keep its connection and its buffers for ever.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    return listener
