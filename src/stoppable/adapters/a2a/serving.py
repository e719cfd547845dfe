"""The agents of a server over A2A: ``serve(agents, routers=[exposed.router], services=[exposed.service])``."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from a2a.auth.user import UnauthenticatedUser, User
from a2a.server.context import ServerCallContext
from a2a.server.routes import (
    ServerCallContextBuilder,
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from a2a.utils.errors import A2AError, InvalidParamsError
from fastapi import APIRouter, Request
from google.protobuf.json_format import MessageToDict
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import stoppable
from stoppable import Policy
from stoppable.adapters.a2a import wire
from stoppable.adapters.a2a.agent_tasks import AgentFunction, RunTasks
from stoppable.adapters.a2a.executor import POLICY
from stoppable.adapters.a2a.handler import StoppableRequestHandler
from stoppable.adapters.a2a.legacy import Endpoint, Legacy
from stoppable.server import Host, Principal, Scope

_logger = logging.getLogger("stoppable.adapters.a2a")

_CACHED = "public, max-age=60"
_STARTS, _STOPS = ("message:send", "message:stream"), (":cancel",)
_METHODS = {
    **dict.fromkeys(("SendMessage", "SendStreamingMessage", "message/send", "message/stream"), Scope.START),
    **dict.fromkeys(("tasks/send", "tasks/sendSubscribe"), Scope.START),
    **dict.fromkeys(("CancelTask", "tasks/cancel"), Scope.STOP),
}  # all others read


class Exposed:
    """Agents that a server offers over A2A: each at ``/a2a/NAME/``, a single one at ``/`` too.

    Protocol 1.0 and 0.3 over JSON-RPC and REST, and the 0.1 dialect over JSON-RPC. With ``grpc=(host, port)`` protocol
    1.0 over gRPC too, on a separate port (0 for a free one); the tenant of a call names the agent. gRPC calls need the
    key of the server. They do not work with a ``principal`` dependency, which needs an HTTP request.
    """

    def __init__(
        self, agents: Mapping[str, Callable[..., Any]], *, policy: Policy = POLICY, grpc: tuple[str, int] | None = None
    ) -> None:
        self._agents, self._policy, self._grpc = dict(agents), policy, grpc
        self._handlers: dict[str, StoppableRequestHandler] = {}
        self.grpc_port: int | None = None
        """Where gRPC listens, while the server runs."""

    def router(self, host: Host) -> APIRouter:
        """Return the routes."""
        router = APIRouter()
        for name, agent in self._agents.items():
            handler = StoppableRequestHandler(
                AgentFunction(agent, host, name, policy=self._policy),
                RunTasks(host.supervisor, name),
                _card(name, agent, "http://localhost"),  # only its capabilities count there
            )
            self._handlers[name] = handler
            for prefix in (f"/a2a/{quote(name, safe='')}", *([""] if len(self._agents) == 1 else [])):
                _add(router, _Agent(name, agent, host, handler, self), prefix)
        return router

    @contextlib.asynccontextmanager
    async def service(self, host: Host) -> AsyncIterator[None]:
        """Serve gRPC if it is wanted, and leave no task working when the server ends."""
        async with contextlib.AsyncExitStack() as stack:
            if self._grpc is not None:
                await stack.enter_async_context(self._over_grpc(host, *self._grpc))
            try:
                yield
            finally:
                for handler in self._handlers.values():  # before gRPC ends: its streams report the ends of the tasks
                    await handler.close()

    @contextlib.asynccontextmanager
    async def _over_grpc(self, host: Host, address: str, port: int) -> AsyncIterator[None]:
        from stoppable.adapters.a2a import grpc_server  # noqa: PLC0415 - it needs grpcio

        host.knows("")  # raises if the server cannot identify gRPC callers
        server, self.grpc_port = grpc_server.bind(address, port, most_bytes=host.limits.body_bytes)
        _logger.info("A2A over gRPC listens on %s, port %d", address, self.grpc_port)
        try:
            async with grpc_server.listening(server, self._handlers, host.knows):
                yield
        finally:
            self.grpc_port = None


class _Caller(User):
    """An owner as a user of the SDK, whose task store separates the tasks of users."""

    def __init__(self, owner: str) -> None:
        self._owner = owner

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._owner


class _Agent(ServerCallContextBuilder):
    """One agent: who calls it, and what its card says."""

    def __init__(
        self, name: str, agent: Callable[..., Any], host: Host, handler: StoppableRequestHandler, exposed: Exposed
    ) -> None:
        self.handler = handler
        self._name, self._agent, self._host, self._exposed = name, agent, host, exposed

    def build(self, request: Request) -> ServerCallContext:
        """Return on whose behalf a request is made, whose scopes have been checked."""
        principal: Principal = request.state.a2a_caller
        user = UnauthenticatedUser() if principal.owner is None else _Caller(principal.owner)
        return ServerCallContext(user=user, state={"headers": dict(request.headers)})

    def require(self, request: Request, scope: Scope) -> None:
        """Raise a 403 if the caller lacks a scope."""
        request.state.a2a_caller = self._host.caller(request, scope)

    async def read_bounded(self, request: Request) -> Request:
        """Return a request whose body has arrived, and is JSON and not too large."""
        body, receive = await self._host.body(request), request.receive
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return parts.pop() if parts else await receive()

        return Request(request.scope, replay)

    def _base(self, request: Request) -> str:
        """Return the address of an agent, from that of its card."""
        path = request.url.path
        for end in ("/.well-known/agent-card.json", "/.well-known/agent.json", "/agentCard"):
            path = path.removesuffix(end)
        return self._host.address(request) + path

    async def card(self, request: Request) -> Response:
        """Return the card, with the address under which it was asked for."""
        base = self._base(request)
        card = _card(self._name, self._agent, base)
        port = self._exposed.grpc_port
        if port is not None:
            netloc = urlsplit(base).netloc
            url = f"{netloc.rpartition(':')[0] or netloc}:{port}"
            over_grpc = AgentInterface(url=url, protocol_binding="GRPC", protocol_version="1.0", tenant=self._name)
            card.supported_interfaces.append(over_grpc)
        if request.headers.get("a2a-version", "").startswith("1."):  # the SDK adds what clients of 0.3 look for
            return JSONResponse(MessageToDict(card), headers={"Cache-Control": _CACHED, "Vary": "A2A-Version"})
        answer: Response = await create_agent_card_routes(card, cache_control=_CACHED)[0].endpoint(request)
        answer.headers["Vary"] = "A2A-Version"
        return answer

    async def old_card(self, request: Request) -> Response:
        """Return the card as 0.1 has it."""
        description = _description(self._name, self._agent)
        skill = {"id": self._name, "name": self._name, "description": description, "tags": ["stoppable"]}
        card = {
            "name": self._name,
            "description": description,
            "url": self._base(request) + "/",
            "version": stoppable.__version__,
            "capabilities": {"streaming": True, "pushNotifications": False},
            "defaultInputModes": ["text/plain", "application/json"],
            "defaultOutputModes": ["text/plain", "application/json"],
            "skills": [skill],
        }
        return JSONResponse(card)


def _add(router: APIRouter, agent: _Agent, prefix: str) -> None:
    rpc = create_jsonrpc_routes(agent.handler, f"{prefix}/", context_builder=agent, enable_v0_3_compat=True)[0]
    legacy = Legacy(agent.handler, rpc.endpoint, agent.build)
    _route(router, f"{prefix}/", "POST", _over_rpc(agent, legacy))
    for path, endpoint in (
        ("/.well-known/agent-card.json", agent.card),
        ("/.well-known/agent.json", agent.old_card),
        ("/agentCard", agent.old_card),
    ):
        _route(router, prefix + path, "GET", _over_rest(agent, endpoint, Scope.READ))
    for route in create_rest_routes(
        agent.handler, context_builder=agent, enable_v0_3_compat=True, path_prefix=prefix or ""
    ):
        if isinstance(route, Route):  # not those with a tenant in the path
            for method in (route.methods or set()) - {"HEAD"}:
                _route(router, route.path, method, _over_rest(agent, route.endpoint, _scope_of(route.path)))


def _scope_of(path: str) -> Scope:
    return Scope.START if path.endswith(_STARTS) else Scope.STOP if path.endswith(_STOPS) else Scope.READ


def _over_rpc(agent: _Agent, legacy: Legacy) -> Endpoint:
    """Return the one endpoint of all methods of JSON-RPC; the method decides which scope is needed."""

    async def endpoint(request: Request) -> Response:
        content: Any = None
        try:
            complete = await agent.read_bounded(request)
            content = wire.parse_body(await complete.body())
            method = content.get("method") if isinstance(content, dict) else None
            agent.require(request, _METHODS.get(method, Scope.READ) if isinstance(method, str) else Scope.READ)
        except (HTTPException, A2AError) as refused:
            return wire.rpc_problem(content.get("id") if isinstance(content, dict) else None, refused)
        return await legacy(complete, content if isinstance(content, dict) else {})

    return endpoint


def _over_rest(agent: _Agent, inner: Endpoint, scope: Scope) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            agent.require(request, scope)
            complete = await agent.read_bounded(request)
            if body := await complete.body():
                wire.parse_body(body)
            _check_query(request)
        except (HTTPException, A2AError) as refused:
            return wire.rest_problem(refused)
        return await inner(complete)

    return endpoint


def _check_query(request: Request) -> None:
    """Raise an error for a state that does not exist, which the SDK takes for an error of its own."""
    status = request.query_params.get("status")
    if status is not None and status not in TaskState.keys():  # noqa: SIM118 - not a dictionary
        raise InvalidParamsError(message=f"unknown status {status!r:.40}: use one of {', '.join(TaskState.keys())}")


def _route(router: APIRouter, path: str, method: str, endpoint: Endpoint) -> None:
    async def answer(request: Request) -> Response:
        return await endpoint(request)

    # A route of FastAPI: one of Starlette would bypass the authentication of the app.
    router.add_api_route(path, answer, methods=[method], response_class=Response, include_in_schema=False)


def _description(name: str, agent: Callable[..., Any]) -> str:
    return (inspect.getdoc(agent) or name).split("\n\n")[0]


def _card(name: str, agent: Callable[..., Any], base: str) -> AgentCard:
    description = _description(name, agent)
    modes = ["text/plain", "application/json"]
    interfaces = [
        AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
        for url, binding, version in (
            (base + "/", "JSONRPC", "1.0"),
            (base, "HTTP+JSON", "1.0"),
            (base + "/", "JSONRPC", "0.3"),
        )
    ]
    return AgentCard(
        name=name,
        description=description,
        version=stoppable.__version__,
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=modes,
        default_output_modes=modes,
        skills=[AgentSkill(id=name, name=name, description=description, tags=["stoppable"])],
        supported_interfaces=interfaces,
    )
