"""A route that checks what it is sent and tells every error in our shape, in whatever app it is included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import Message, Receive

from stoppable.errors import StoppableError
from stoppable.server.limits import ServerLimits
from stoppable.server.origins import check_origin
from stoppable.server.problems import Problem, problem_of, problem_of_validation


def guarded_route(limits: ServerLimits, allowed_origins: Collection[str]) -> type[APIRoute]:
    """Return the class of our routes, with the limits of one router."""

    class GuardedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                try:
                    check_origin(request.method, request.headers, allowed_origins)
                    _check_body(request, limits.body_bytes)
                    return await handle(_Request(request.scope, _bounded(request.receive, limits)))
                except Problem as problem:
                    return problem.to_response()
                except RequestValidationError as error:
                    return problem_of_validation(error).to_response()
                except StoppableError as error:
                    return problem_of(error).to_response()

            return guarded

    return GuardedRoute


class _Request(Request):
    async def json(self) -> Any:
        return orjson.loads(await self.body())  # unlike json, it takes neither NaN nor half a character


def _check_body(request: Request, limit: int) -> None:
    headers = request.headers
    length = headers.get("content-length")
    if length is not None and length.isdecimal() and int(length[:20]) > limit:
        raise _too_large(limit)
    if length in {None, "0"} and "transfer-encoding" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem(415, "unsupported_media_type", "send JSON, with the header Content-Type: application/json")


def _bounded(receive: Receive, limits: ServerLimits) -> Receive:
    """Count what arrives, and how long that takes: a chunked body does not say how long it will be."""
    left = limits.body_bytes
    deadline = asyncio.get_running_loop().time() + limits.body_seconds

    async def bounded() -> Message:
        nonlocal left
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Problem(408, "too_slow", "the body did not arrive in time", {"Connection": "close"}) from None
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_large(limits.body_bytes)
        return message

    return bounded


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body is over the limit of {limit:,} bytes", {"Connection": "close"})
