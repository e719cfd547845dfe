"""What was seen of one stop, as plain values that can be written as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stopbench.model_server import Request
from stopbench.tools import Event


@dataclass(slots=True, kw_only=True)
class NextTurn:
    """What became of the message that the user wrote after the stop."""

    messages: list[dict[str, Any]] | None = None
    """What the model got first; None if it got nothing."""
    ended: bool = False
    error: str = ""
    refused: bool = False
    """Whether the model refused the conversation at any time."""


@dataclass(slots=True, kw_only=True)
class Observation:
    """What the harness saw from outside; times are of the monotonic clock."""

    scenario: str
    sub_agent: bool = True
    """Whether the subject has agents that are tools."""
    pressed: float | None = None
    """When Stop was pressed, or the server was killed."""
    called: float | None = None
    """When the process of the subject had got that, and called the cancel."""
    reported: float | None = None
    """When the caller was told that the turn has ended; None if it never was."""
    state: str = ""
    """What the caller was told: "stopped", "completed", "failed" or "lost"."""
    error: str = ""
    stop_error: str = ""
    """What the call that stops raised."""
    events: list[Event] = field(default_factory=list)
    """What the tools wrote."""
    requests: list[Request] = field(default_factory=list)
    """Those of the turn that was stopped."""
    answered: float | None = None
    """When the model had sent its last answer in full."""
    left: list[str] = field(default_factory=list)
    """The commands of tools that were alive when the end had been reported."""
    next_turn: NextTurn | None = None
    versions: dict[str, str] = field(default_factory=dict)
    longest_gap: float = 0.0
    """The longest time for which this machine left the harness without a turn."""
    failure: str = ""
    """Why nothing could be measured."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Observation:
        """Return what `as_json` was called on."""
        next_turn = value["next_turn"]
        parts = {
            "events": [Event(**each) for each in value["events"]],
            "requests": [Request(**each) for each in value["requests"]],
            "next_turn": None if next_turn is None else NextTurn(**next_turn),
        }
        return cls(**{**value, **parts})
