"""On whose behalf a request is made, and what that one may do."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fastapi import Request

from stoppable.errors import InvalidArgument
from stoppable.records import RunRecord
from stoppable.server.problems import Problem

_logger = logging.getLogger("stoppable.server")


class Scope(StrEnum):
    """What a caller may be allowed to do."""

    READ = "read"
    START = "start"
    STOP = "stop"
    HOLD = "hold"
    AUDIT = "audit"


EVERYTHING = frozenset(Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is calling.

    With an ``owner`` the caller sees, starts and stops that owner's runs alone, and all others do not exist for it.
    ``sees_all=True`` instead means every run; one with neither is refused, so that a missing claim of a token does not
    open everything. ``actor`` is what receipts and the audit say about who did it. ``scopes`` may be one
    string with spaces between them, as a token has it.
    """

    owner: str | None = None
    sees_all: bool = False
    actor: str | None = None
    scopes: Iterable[str] = field(default=EVERYTHING)

    def __post_init__(self) -> None:
        scopes = self.scopes.split() if isinstance(self.scopes, str) else self.scopes
        object.__setattr__(self, "scopes", frozenset(scopes))
        if self.owner is not None and self.sees_all:
            raise InvalidArgument("a principal has an owner or sees all runs, not both")

    def sees(self, owner: str | None) -> bool:
        """Return whether what belongs to an owner exists for this caller."""
        return self.sees_all or self.owner == owner

    def sees_run(self, record: RunRecord) -> bool:
        """Return whether a run exists for this caller."""
        return self.sees(record.owner)

    def require(self, scope: Scope) -> None:
        """Refuse a caller that may not do something."""
        if scope not in self.scopes:
            raise Problem(403, "missing_scope", f"this needs the scope {scope.value!r}, which you do not have")


def admit(request: Request, found: Any) -> None:
    """Remember who is calling."""
    if not isinstance(found, Principal):
        raise TypeError(f"the principal dependency returned {type(found).__name__}: return a stoppable Principal")
    if found.owner is None and not found.sees_all:
        _logger.error("the principal dependency returned a Principal without an owner: sees_all=True means every run")
        raise Problem(403, "no_owner", "nobody knows whose runs you may see")
    request.state.stoppable_principal = found


def caller_of(request: Request, scope: Scope) -> Principal:
    """Return who is calling, if that one may do this."""
    found: Principal = request.state.stoppable_principal
    found.require(scope)
    return found
