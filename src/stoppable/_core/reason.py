"""Why a run was stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from stoppable._core import clock
from stoppable.errors import InvalidArgument


class ReasonKind(StrEnum):
    """What kind of event stopped a run."""

    USER = "user"
    LIMIT = "limit"
    PARENT = "parent"
    SHUTDOWN = "shutdown"
    DISCONNECT = "disconnect"
    POLICY = "policy"
    EXTERNAL = "external"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a run was stopped, by whom and when; the first reason stays (G3)."""

    kind: ReasonKind = ReasonKind.USER
    message: str = ""
    actor: str | None = None
    at: float = 0.0
    cause: str | None = None

    def __str__(self) -> str:
        text = self.message or f"stopped by {self.kind}"
        return f"{text} ({self.actor})" if self.actor else text

    @classmethod
    def of(cls, value: Reason | str | None, *, kind: ReasonKind = ReasonKind.USER, actor: str | None = None) -> Reason:
        """Return a reason from a text, a ``Reason`` or None; ``actor`` is used if the reason has none."""
        if value is not None and not isinstance(value, (str, Reason)):
            raise InvalidArgument(f"reason is {value!r}: use a string")
        if actor is not None and not isinstance(actor, str):
            raise InvalidArgument(f"actor is {actor!r}: use a string")
        if isinstance(value, Reason):
            return replace(value, actor=actor) if actor and not value.actor else value
        return cls(kind=kind, message=value or "", actor=actor, at=clock.now())
