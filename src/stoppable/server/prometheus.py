"""The metrics of a server, at ``/metrics``, for Prometheus. Needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from stoppable._engine.threads import to_thread
from stoppable.metrics import counter, gauge, registry
from stoppable.server.access import Scope
from stoppable.server.backend import Backend, Host
from stoppable.server.responses import Problem

__all__ = ["metrics_api"]


def metrics_api(host: Host) -> APIRouter:
    """Return the route ``/metrics``, for ``serve`` and ``create_app``.

    It needs a caller who may see the runs of all owners, with the scope ``read``: the key of the server, or anybody on
    this machine if the server has none.
    """
    backend = host._backend  # the route is a part of the server
    metrics = registry(backend.supervisor, list(backend.registry))
    metrics.register(_ServerCollector(backend))
    router = APIRouter()

    async def scrape(request: Request) -> Response:
        """Report what this process does, in the text format of Prometheus or in OpenMetrics."""
        if not host.caller(request, Scope.READ).sees_all:
            raise Problem(403, "not_operator", "metrics are about the runs of all owners, and you may see yours only")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        # On a thread: a server with thousands of runs looks at each of them, and a stop must not wait for that.
        return Response(await to_thread(encode, metrics), media_type=content_type)

    router.add_api_route("/metrics", scrape, methods=["GET"], response_class=Response, include_in_schema=False)
    return router


class _ServerCollector(Collector):
    """What only the server knows, beside what its supervisor does."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        backend = self._backend
        yield gauge("streams", "Event streams that are open.", {(): len(backend.streams)})
        yield gauge("draining", "1 while the server refuses new runs because it shuts down.", {(): backend.is_draining})
        idle = backend.idle
        if idle is None:  # another server accepts the connections
            return
        yield gauge("connections", "Connections that are open.", {(): len(idle.connections)})
        yield gauge("connections_limit", "Connections that may be open, besides those for stops.", {(): idle.limit})
        about = "Connections and requests that were refused because the server was full."
        yield counter("connections_refused", about, {(): idle.refused})
        about = "Connections that were closed to make room, because they waited for their client."
        yield counter("connections_closed", about, {(): idle.closed})
