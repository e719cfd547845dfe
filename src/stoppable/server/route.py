"""A route that limits request bodies and answers errors in our format, in any app that includes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive

from stoppable.errors import StoppableError, StoreError
from stoppable.server.access import Identify, Principal, admit, check_origin, share
from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem, loads, problem_of, problem_of_validation

_WITHOUT_BODY = frozenset({"GET", "HEAD", "DELETE"})  # not read there
_DISCARDED = 10  # times the limit: a client reads the response only after it has sent everything


def has_body(headers: Headers) -> bool:
    """Return whether a body follows."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def may_have_body(request: Request) -> bool:
    """Return whether a body may follow that the headers do not announce, as in HTTP/2."""
    return request.method not in _WITHOUT_BODY and not request.scope["http_version"].startswith("1")


def check_kind(headers: Headers) -> None:
    """Refuse other types than JSON: a web form can send those to another origin without a preflight request."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem(415, "unsupported_media_type", "send JSON, with the header Content-Type: application/json")


async def body_of(request: Request, limits: ServerLimits) -> bytes | None:
    """Return the body of a request, which must be JSON and within the limits; None if there is none."""
    if has_body(request.headers):
        check_kind(request.headers)
        return await read_body(request.receive, limits)
    if not may_have_body(request):
        return None
    body = await read_body(request.receive, limits)
    if body:
        check_kind(request.headers)
    return body


async def read_body(receive: Receive, limits: ServerLimits) -> bytes:
    """Return the body; counts its bytes as they arrive, because a chunked body has no length."""
    limit = limits.body_bytes
    too_large = f"the body is over the limit of {limit:,} bytes"
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            has_more = True
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Problem(400, "bad_request", "the body is not complete")
                size += len(message.get("body", b""))
                if size > _DISCARDED * limit:
                    raise Problem(413, "too_large", too_large, {"Connection": "close"})
                if size <= limit:
                    chunks.append(message.get("body", b""))
                has_more = message.get("more_body", False)
    except TimeoutError:
        raise Problem(408, "too_slow", "the body did not arrive in time", {"Connection": "close"}) from None
    if size > limit:
        raise Problem(413, "too_large", too_large)
    return b"".join(chunks)


_logger = logging.getLogger("stoppable.server")


def guarded_route(
    limits: ServerLimits,
    allowed_origins: Collection[str],
    identify: Identify | None = None,
    *,
    tells_origins: bool = False,
) -> type[APIRoute]:
    """Return the route class of one router, with its limits.

    ``identify`` returns the caller, if that needs no dependency of the surrounding app.
    """

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()
            is_stream = self.path.endswith("/events")  # closing a stream may stop the run

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
    """Return the response for one of our errors."""
    if isinstance(error, StoreError):
        _logger.warning("the store failed a request: %s", error)
    caller: Principal | None = getattr(request.state, "stoppable_principal", None)
    if caller is None or caller.owner is None:
        return problem_of(error, to_operator=caller is not None).to_response()
    return problem_of(error, to_operator=False, owner=caller.owner).to_response()


class _Request(Request):
    async def read(self, limits: ServerLimits) -> None:
        """Read the body, if there is one, within the limits."""
        body = await body_of(self, limits)
        if body is not None:
            self._body = body

    async def json(self) -> Any:
        return loads(await self.body())
