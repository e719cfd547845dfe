"""Agents over gRPC, protocol 1.0: all on one port; the tenant of a call names the agent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from stoppable._extras import pip_install as _pip_install

try:
    import grpc
except ModuleNotFoundError as _error:  # one that is there and fails says why itself
    raise ImportError(f"grpcio is not installed: {_pip_install('a2a', 'a2a-sdk[grpc]')}", name="grpc") from _error
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import GrpcHandler
from a2a.server.request_handlers.grpc_handler import DefaultGrpcServerCallContextBuilder
from a2a.types import a2a_pb2_grpc
from a2a.utils.errors import A2AError, InvalidParamsError, VersionNotSupportedError

from stoppable import InvalidArgument
from stoppable.adapters.a2a.handler import StoppableRequestHandler

CLOSE_SECONDS = 1.0  # for calls whose tasks have ended


def bind(host: str, port: int, *, most_bytes: int | None = None) -> tuple[grpc.aio.Server, int]:
    """Return a server that has a port, a free one for 0, and the port; call it on the event loop that it will use."""
    options: list[tuple[str, Any]] = [("grpc.so_reuseport", 0)]  # otherwise a second server could share the port
    if most_bytes is not None:
        options.append(("grpc.max_receive_message_length", most_bytes))
    server = grpc.aio.server(options=options)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return server, server.add_insecure_port(address)
    except RuntimeError as error:
        raise InvalidArgument(f"cannot listen on {address} for gRPC: {error}; use another port") from None


@contextlib.asynccontextmanager
async def listening(
    server: grpc.aio.Server, handlers: Mapping[str, StoppableRequestHandler], is_known: Callable[[str], bool]
) -> AsyncIterator[None]:
    """Serve agents, by their names, to callers whose ``authorization`` is known."""
    agents: Any = _Agents(handlers)
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(_Grpc(agents, _Callers(is_known)), server)
    await server.start()
    try:
        yield
    finally:
        await server.stop(CLOSE_SECONDS)


class Versions(DefaultGrpcServerCallContextBuilder):
    """Refuses calls in another version, as the SDK does over HTTP."""

    def build(self, context: grpc.aio.ServicerContext[Any, Any]) -> ServerCallContext:
        """Return on whose behalf a call is made."""
        version = metadata_of(context, "a2a-version")
        if version and version.partition(".")[0] != "1":
            raise VersionNotSupportedError(message=f"A2A version {version!r:.40} is not supported: use 1.0")
        return super().build(context)


class _Callers(Versions):
    """Refuses callers that are not known."""

    def __init__(self, is_known: Callable[[str], bool]) -> None:
        self._is_known = is_known

    def build(self, context: grpc.aio.ServicerContext[Any, Any]) -> ServerCallContext:
        if not self._is_known(metadata_of(context, "authorization")):
            raise _UnauthenticatedError(message="a key is required: send the metadata authorization: Bearer KEY")
        return super().build(context)


class _UnauthenticatedError(A2AError):
    """The caller is not known."""


class _Grpc(GrpcHandler):
    async def abort_context(self, error: A2AError, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """End a call with an error."""
        if isinstance(error, _UnauthenticatedError):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        await super().abort_context(error, context)


class _Agents:
    """Passes each call on to the handler of the agent that its tenant names; a single agent needs no tenant."""

    def __init__(self, handlers: Mapping[str, StoppableRequestHandler]) -> None:
        self._handlers = dict(handlers)

    def __getattr__(self, method: str) -> Callable[[Any, ServerCallContext], Any]:
        return lambda params, context: getattr(self._of(context.tenant), method)(params, context)

    def _of(self, tenant: str) -> StoppableRequestHandler:
        if not tenant and len(self._handlers) == 1:
            return next(iter(self._handlers.values()))
        if tenant not in self._handlers:
            raise InvalidParamsError(message=f"no agent is called {tenant!r:.100}: its name is the tenant of a call")
        return self._handlers[tenant]


def metadata_of(context: grpc.aio.ServicerContext[Any, Any], header: str) -> str:
    """Return a header of a call, or an empty text."""
    return next((str(value) for name, value in context.invocation_metadata() or () if name.lower() == header), "")
