"""Access control: who is calling, from which origin, and what the caller may do and see."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response

from stoppable._core.stop import Receipt
from stoppable.errors import InvalidArgument, RunNotFound
from stoppable.records import RunRecord, RunSummary, changed
from stoppable.server.responses import Problem
from stoppable.supervisor import Supervisor

_logger = logging.getLogger("stoppable.server")


class Scope(StrEnum):
    """A permission of a caller."""

    READ = "read"
    START = "start"
    STOP = "stop"
    HOLD = "hold"
    AUDIT = "audit"


EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A caller of the server.

    With an ``owner`` the caller sees, starts and stops only that owner's runs. With ``sees_all=True`` it sees every
    run. A principal with neither is refused, so that a missing claim in a token does not grant access to everything.
    ``actor`` is the name in receipts and in the audit. ``scopes`` may be one string with spaces, as in an OAuth token.
    """

    owner: str | None = None
    sees_all: bool = False
    actor: str | None = None
    scopes: Iterable[str] = field(default=EVERYTHING)

    def __post_init__(self) -> None:
        scopes = self.scopes.split() if isinstance(self.scopes, str) else self.scopes
        object.__setattr__(self, "scopes", frozenset(scopes))
        if self.owner is not None and self.sees_all:
            raise InvalidArgument("give a principal an owner or sees_all=True, not both")

    def sees(self, owner: str | None) -> bool:
        """Return whether this caller may see the runs of an owner."""
        return self.sees_all or self.owner == owner

    def sees_run(self, record: RunRecord | RunSummary) -> bool:
        """Return whether this caller may see a run."""
        return self.sees(record.owner)

    def require(self, scope: Scope) -> None:
        """Raise a 403 if the caller lacks a scope."""
        if scope not in self.scopes:
            raise Problem(403, "missing_scope", f"the scope {scope.value!r} is missing")


_TAG = 12  # characters


def own_id(caller: Principal, run_id: str) -> str:
    """Return the id of a run to which a caller gave an id: that id, with a tag of the caller's owner.

    So owners cannot take ids from one another, or find out which ids others have taken.
    """
    if caller.owner is None:
        return run_id
    tag = "~" + hashlib.sha256(caller.owner.encode("utf-8", "surrogatepass")).hexdigest()[:_TAG]
    return run_id if run_id.endswith(tag) else run_id + tag


def admit(request: Request, found: Any) -> None:
    """Remember who is calling."""
    if not isinstance(found, Principal):
        raise TypeError(f"the principal dependency returned {type(found).__name__}: return a stoppable Principal")
    if found.owner is None and not found.sees_all:
        _logger.error("the principal dependency returned a Principal without an owner: sees_all=True means every run")
        raise Problem(403, "no_owner", "the server could not determine whose runs you may see")
    request.state.stoppable_principal = found


def caller_of(request: Request, scope: Scope) -> Principal:
    """Return the caller of a request, or raise a 403 if a scope is missing."""
    found: Principal = request.state.stoppable_principal
    found.require(scope)
    return found


_SHORTEST = 8

Identify: TypeAlias = Callable[[Request], Principal]
"""Returns the caller of a request, or raises the Problem that refuses it."""


def local_caller() -> Identify:
    """Return the principal of a server that only this machine can reach."""
    local = Principal(sees_all=True, actor="local")
    return lambda _: local


def holder_of(key: str) -> Identify:
    """Return the check for a server with a key, which callers send as a bearer token."""
    if len(key) < _SHORTEST:
        raise InvalidArgument(f"the API key is too short: use {_SHORTEST} characters or more")
    if key != key.strip() or not key.isprintable():
        raise InvalidArgument("the API key cannot be sent in a header: remove white space around it and line breaks")
    wanted = _digest(key.encode())
    holder = Principal(sees_all=True, actor="api-key")

    def found(request: Request) -> Principal:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        # Digests have the same length, so the comparison reveals nothing about the key.
        if scheme.lower() != "bearer" or not given.strip():
            raise _unauthenticated("a key is required: send the header Authorization: Bearer KEY")
        if not hmac.compare_digest(_digest(given.strip().encode("latin-1")), wanted):
            raise _unauthenticated("the key is wrong: this server has another one")
        return holder

    return found


def _unauthenticated(message: str) -> Problem:
    return Problem(401, "unauthenticated", message, {"WWW-Authenticate": "Bearer"})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


_DIRECTORIES = re.compile(r'File "[^"\n]*[/\\]([^"\n/\\]+)"')


async def visible_record(supervisor: Supervisor, caller: Principal, record: RunRecord) -> RunRecord:
    """Return a record without what the caller may not see; tracebacks lose the directories of the server."""
    if caller.sees_all:
        return record
    outcome = record.outcome
    if outcome is not None and outcome.error is not None and outcome.error.trace:
        error = replace(outcome.error, trace=_DIRECTORIES.sub(r'File "\1"', outcome.error.trace))
        record = changed(record, outcome=replace(outcome, error=error))
    if record.receipt is None:
        return record
    receipt = await visible_receipt(supervisor, caller, record.receipt)
    return record if receipt is record.receipt else changed(record, receipt=receipt)


async def visible_receipt(supervisor: Supervisor, caller: Principal, receipt: Receipt) -> Receipt:
    """Return a receipt without the nodes of other owners' runs.

    Labels in flight have no owner, so they are taken from the remaining nodes.
    """
    names = (receipt.nodes, receipt.in_flight, receipt.entered_after, receipt.library_threads, receipt.unguarded)
    if caller.sees_all or not any(names):
        return receipt
    found = {record.id: caller.sees_run(record) for record in await supervisor.tree(receipt.run_id)}
    for run_id in {node.run_id for node in receipt.nodes} - set(found):  # its parent was in the store after it
        found[run_id] = await _is_seen(supervisor, caller, run_id)
    if all(found.values()):
        return receipt
    own = {run_id for run_id, is_seen in found.items() if is_seen}
    nodes = tuple(node for node in receipt.nodes if node.run_id in own)
    labels = {f"{node.kind}:{node.name}" if node.name else node.kind for node in nodes}
    in_flight = tuple(label for label in receipt.in_flight if label in labels)
    return replace(receipt, nodes=nodes, in_flight=in_flight, entered_after=(), library_threads=(), unguarded=())


async def _is_seen(supervisor: Supervisor, caller: Principal, run_id: str) -> bool:
    try:
        return caller.sees_run(await supervisor.get(run_id))
    except RunNotFound:
        return False


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

METHODS = ("GET", "POST", "DELETE")
TAKEN = ("Authorization", "Content-Type", "Last-Event-ID", "Idempotency-Key")
"""The request headers that a page of another origin may send."""
EXPOSED = ("Stoppable-Run-Id", "Location")
"""The response headers that it may read."""

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def check_origin(method: str, headers: Headers, allowed: Collection[str], *, also_looking: bool = False) -> None:
    """Refuse changes requested by pages of another origin, and with ``reads`` also reads.

    Browsers send the origin of a request, which a page cannot forge; other clients do not.
    """
    if method in _SAFE and not also_looking:
        return
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin in allowed:
        return
    if site is not None:
        if site in {"same-origin", "none"}:
            return
    elif origin is None or origin.partition("://")[2] == headers.get("host"):
        return
    raise Problem(403, "foreign_origin", "pages of other origins may not do this: add the origin to allowed_origins")


def check_host(headers: Headers, allowed: Collection[str]) -> None:
    """Refuse unknown host names: after DNS rebinding, a page sends its own host name."""
    if host_name(headers.get("host", "")) not in allowed:
        raise Problem(
            403,
            "foreign_host",
            "without a key this server answers to local host names only: configure a key, a principal or allowed_hosts",
        )


def host_name(host: str) -> str:
    """Return a host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def share(headers: Headers, response: Response, allowed: Collection[str]) -> None:
    """Let a page of an allowed origin read a response."""
    origin = headers.get("origin")
    response.headers.add_vary_header("Origin")
    if origin is not None and origin in allowed:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = ", ".join(EXPOSED)


def preflight(allowed: Collection[str]) -> Callable[[Request], Awaitable[Response]]:
    """Return the response to a CORS preflight request."""

    async def answer(request: Request) -> Response:
        response = Response(status_code=204)
        share(request.headers, response, allowed)
        if "Access-Control-Allow-Origin" in response.headers:
            response.headers["Access-Control-Allow-Methods"] = ", ".join(METHODS)
            response.headers["Access-Control-Allow-Headers"] = ", ".join(TAKEN)
            response.headers["Access-Control-Max-Age"] = "600"
        return response

    return answer
