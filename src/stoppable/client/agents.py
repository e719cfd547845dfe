"""An agent of a server, as it describes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInfo:
    """An agent that the server can start: its name, its description, and the JSON Schema of its input."""

    name: str
    description: str = ""
    kind: str = ""
    input: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Self:
        """Return it from its JSON form."""
        return cls(
            name=str(body["name"]),
            description=str(body.get("description", "")),
            kind=str(body.get("kind", "")),
            input=dict(body.get("input") or {}),
        )
