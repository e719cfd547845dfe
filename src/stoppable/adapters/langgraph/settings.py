"""How the runs of a graph are started, and what happens to its thread when one is stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from stoppable import InvalidArgument, Policy
from stoppable.supervisor import Supervisor

OnStop = Literal["seal", "rollback", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of ``stoppable_graph``."""

    supervisor: Supervisor | None = None
    on_stop: OnStop = "seal"
    seal_seconds: float = 5.0
    name: str | None = None
    owner: str | None = None
    policy: Policy | None = None

    def __post_init__(self) -> None:
        if self.on_stop not in {"seal", "rollback", "leave"}:
            raise InvalidArgument(f"unknown on_stop {self.on_stop!r}: use seal, rollback or leave")

    def for_subgraph(self) -> Settings:
        """Return the settings for graphs that are called in this one; their runs have their own names."""
        return Settings(on_stop=self.on_stop, seal_seconds=self.seal_seconds)


DEFAULT = Settings()

ATTRIBUTE = "__stoppable_settings__"


def settings_of(graph: Any) -> Settings | None:
    """Return the settings of a graph. They are kept on its class, because a graph copies its own attributes."""
    found: Settings | None = getattr(type(graph), ATTRIBUTE, None)
    return found


def key_of(thread_id: object) -> str:
    """Return the address of a thread's runs, for ``supervisor.stop(key=…)`` and ``supervisor.find``."""
    return f"langgraph:{quote(str(thread_id), safe='')}"
