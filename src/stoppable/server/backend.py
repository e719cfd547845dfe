"""What the routes of one server share, and what your own routers and services may use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Unpack

from fastapi import APIRouter, Request

from stoppable._core.values import Mode
from stoppable._engine.handle import RunHandle
from stoppable.errors import InvalidArgument, RunNotFound
from stoppable.records import RunRecord
from stoppable.server.access import LOOPBACK, Identify, Principal, Scope, body_of, caller_of, host_name, own_id
from stoppable.server.hosted_agents import AgentLoop, Registry
from stoppable.server.limits import IdleConnections, ServerLimits, Shares
from stoppable.server.responses import Problem
from stoppable.server.sse.streams import Streams
from stoppable.supervisor import Prepared, StartOptions, Supervisor

_logger = logging.getLogger("stoppable.server")


def _launch(prepared: Prepared[Any]) -> None:
    """Start a run that is in the store; if it cannot begin, its record says so."""
    try:
        prepared.launch()
    except Exception:
        _logger.exception("run %s could not be started", prepared.id)


@dataclass(slots=True, kw_only=True)
class Backend:
    """The supervisor behind a server, and the agents that it may start."""

    supervisor: Supervisor
    registry: Registry
    limits: ServerLimits
    agent_loop: AgentLoop | None = None
    services: Sequence[Callable[[], AbstractAsyncContextManager[Any]]] = ()
    known_hosts: Collection[str] = LOOPBACK
    """The host names under which clients may know this server."""
    is_draining: bool = False
    idle: IdleConnections | None = None
    """The connections, unless another server accepts them."""
    streams: Streams = field(init=False)
    shares: Shares = field(init=False)
    _isolated: set[str] = field(default_factory=set)
    """Live runs with ``isolation="process"``, and some that have ended."""

    def __post_init__(self) -> None:
        self.streams = Streams(self.supervisor, self.limits)
        self.shares = Shares(self.limits)

    async def record(self, run_id: str, caller: Principal) -> RunRecord:
        """Return a run that the caller may see, by its id or the one that the caller gave it, or raise RunNotFound."""
        for known_as in dict.fromkeys((run_id, own_id(caller, run_id))):
            with contextlib.suppress(RunNotFound):
                record = await self.supervisor.get(known_as)
                if caller.sees_run(record):
                    return record
        raise RunNotFound(run_id)

    async def start(self, name: str, arguments: Any, options: StartOptions) -> tuple[str, bool]:
        """Start an agent, and return the id of its run and whether it is new; does not wait for the agent loop."""
        agent, args = self.registry.bind(name, arguments)
        return await self.start_agent(agent, args, options)

    async def start_agent(
        self, agent: Callable[..., Any], args: tuple[Any, ...], options: StartOptions
    ) -> tuple[str, bool]:
        """Start any agent where this server runs its agents."""
        prepared = await self._prepare(agent, args, options)
        if prepared.is_new:
            self.launch(prepared)
        return prepared.id, prepared.is_new

    async def prepare(self, name: str, arguments: Any, options: StartOptions) -> Prepared[Any]:
        """Put the run of an agent into the store; ``launch`` starts it."""
        agent, args = self.registry.bind(name, arguments)
        return await self._prepare(agent, args, options)

    def launch(self, prepared: Prepared[Any]) -> None:
        """Start a run that is in the store where this server runs its agents; does not wait for the agent loop."""
        if self.agent_loop is None:
            _launch(prepared)
        else:
            self.agent_loop.call(_launch, prepared)

    async def _prepare(self, agent: Callable[..., Any], args: tuple[Any, ...], options: StartOptions) -> Prepared[Any]:
        if self.is_draining or self.supervisor.is_draining:
            raise Problem(503, "shutting_down", "the server is shutting down: use another one", {"Retry-After": "5"})
        self._check_quota(options)
        prepared = await self.supervisor.prepare(agent, *args, **options)
        if prepared.is_new and options.get("isolation") == "process":
            self._isolated.add(prepared.id)
        return prepared

    def _check_quota(self, options: StartOptions) -> None:
        """Refuse a run above the owner's quota, which counts the live runs of this process."""
        owner = options.get("owner")
        if owner is None:
            return
        runs = self.supervisor.runs
        live = [run.id for run in runs if run.parent is None and run.owner == owner]
        if options.get("run_id") in live:
            return  # it may be the same request again
        self._isolated &= {run.id for run in runs}
        isolated = len(self._isolated.intersection(live)) if options.get("isolation") == "process" else 0
        for count, most, what in (
            (len(live), self.limits.owner_runs, "live runs"),
            (isolated, self.limits.owner_processes, "runs in agent processes"),
        ):
            if count >= most:
                message = f"owner {owner!r} has {count} {what}, which is the limit here: stop some, or try later"
                raise Problem(429, "quota_exceeded", message, {"Retry-After": "5"})

    async def drain(self) -> None:
        """Refuse new runs, stop those of this process, then end the remaining streams."""
        self.is_draining = True
        await self.supervisor.drain()
        self.streams.drain()

    def hurry(self, mode: Mode) -> float:
        """Stop the runs of this process, and return the seconds after which all have ended; signal-safe."""
        return self.supervisor.shut_down(mode)

    async def is_ready(self, seconds: float = 2.0) -> bool:
        """Return whether the store can be read and written, and the server accepts new runs."""
        if self.is_draining or not self.supervisor.is_current:
            return False
        try:
            async with asyncio.timeout(seconds):
                await self.supervisor.holds()
        except (OSError, TimeoutError):
            return False
        return True


class Host:
    """A server, as its extensions see it."""

    def __init__(self, backend: Backend, identify: Identify | None = None) -> None:
        self._backend, self._identify = backend, identify

    @property
    def supervisor(self) -> Supervisor:
        """Starts, finds and stops the runs of this server."""
        return self._backend.supervisor

    @property
    def limits(self) -> ServerLimits:
        """The limits of this server."""
        return self._backend.limits

    async def start(self, agent: Callable[..., Any], *args: Any, **options: Unpack[StartOptions]) -> RunHandle[Any]:
        """Start an agent where this server runs its agents: an async one on the agent loop.

        When this returns, the run is in the store. The handle may be awaited on any loop. The items of a generator
        agent are in ``events()``.
        """
        run_id, _ = await self._backend.start_agent(agent, args, options)
        return self.supervisor.handle(run_id)

    async def body(self, request: Request) -> bytes:
        """Return the JSON body of a request to one of your routes, within the limits of this server."""
        return await body_of(request, self._backend.limits) or b""

    @staticmethod
    def caller(request: Request, scope: str = Scope.READ) -> Principal:
        """Return the caller of one of your routes, or raise a 403 that names the missing scope."""
        return caller_of(request, Scope(scope))

    def address(self, request: Request) -> str:
        """Return the scheme, host and port of this server for links, such as ``http://127.0.0.1:8420``.

        The Host header counts only if it names this machine or one of ``allowed_hosts``: a response with another one
        may end up in a cache, and send other clients to a foreign server.
        """
        scheme, netloc = request.url.scheme, request.url.netloc
        name = host_name(netloc)
        server = request.scope.get("server")
        if name not in self._backend.known_hosts and server is not None:
            host = f"[{server[0]}]" if ":" in server[0] else server[0]
            netloc = host if server[1] is None else f"{host}:{server[1]}"
        return f"{scheme}://{netloc}"

    def knows(self, authorization: str) -> bool:
        """Return whether a caller of your own protocol, other than HTTP, may do everything on this server.

        The argument is the value of an Authorization header. Without a key, every caller may. Raises InvalidArgument on
        a server with its own principal, which knows callers only by their HTTP requests.
        """
        if self._identify is None:
            raise InvalidArgument("this server identifies callers by a principal, which needs an HTTP request")
        headers = [(b"authorization", authorization.encode("latin-1", "replace"))]
        try:
            self._identify(Request({"type": "http", "headers": headers}))
        except Problem:
            return False
        return True


Routers: TypeAlias = Sequence[APIRouter | Callable[[Host], APIRouter]]
"""Your own routes, or functions that make them."""

Services: TypeAlias = Sequence[Callable[[Host], AbstractAsyncContextManager[Any]]]
"""Context managers that are entered after the supervisor is opened, and left before it is closed."""
