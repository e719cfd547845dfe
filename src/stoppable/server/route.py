"""A route that checks what it is sent and tells every error in our shape, in whatever app it is included."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from stoppable.errors import StoppableError, StoreError
from stoppable.server.encoding import loads
from stoppable.server.limits import ServerLimits
from stoppable.server.origins import check_origin, share
from stoppable.server.principal import Principal, admit
from stoppable.server.problems import Problem, problem_of, problem_of_validation
from stoppable.server.request_body import body_of

_logger = logging.getLogger("stoppable.server")

Identify: TypeAlias = Callable[[Request], Principal]


def guarded_route(
    limits: ServerLimits,
    allowed_origins: Collection[str],
    identify: Identify | None = None,
    *,
    tells_origins: bool = False,
) -> type[APIRoute]:
    """Return the class of our routes, with the limits of one router.

    ``identify`` says who is calling, where that takes no dependency of somebody's app.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()
            is_stream = self.path.endswith("/events")  # whoever opens a stream and leaves it may stop the run

            async def guarded(request: Request) -> Response:
                try:
                    check_origin(request.method, request.headers, allowed_origins, also_looking=is_stream)
                    own = _Request(request.scope, request.receive)
                    if identify is not None:
                        admit(own, identify(own))
                    await own.read(limits)
                    return await handle(own)
                except Problem as problem:
                    return problem.to_response()
                except RequestValidationError as error:
                    return problem_of_validation(error).to_response()
                except StoppableError as error:
                    return answer_to(request, error)

            async def shared(request: Request) -> Response:
                response = await guarded(request)
                share(request.headers, response, allowed_origins)
                return response

            return shared if tells_origins else guarded

    return GuardedRoute


def answer_to(request: Request, error: StoppableError) -> Response:
    """Return how a request is told of one of our errors."""
    if isinstance(error, StoreError):
        _logger.warning("the store failed a request: %s", error)
    caller: Principal | None = getattr(request.state, "stoppable_principal", None)
    return problem_of(error, to_operator=caller is not None and caller.owner is None).to_response()


class _Request(Request):
    async def read(self, limits: ServerLimits) -> None:
        """Take the body, if there is one, within the limits."""
        body = await body_of(self, limits)
        if body is not None:
            self._body = body

    async def json(self) -> Any:
        return loads(await self.body())
