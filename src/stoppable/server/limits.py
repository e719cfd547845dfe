"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stoppable._core.policy import Limits, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The limits of one server; an error names the limit that a request exceeds."""

    body_bytes: int = 1_000_000
    body_seconds: float = 30.0
    """How long a client may take to send the body of a request."""
    head_bytes: int = 32_768
    head_seconds: float = 15.0
    """How long a client may take to send the head of a request."""
    connections: int = 8_192
    """How many connections there may be; beyond that, some more are reserved for stops."""
    address_connections: int = 2_048
    """How many connections without a complete request one address may hold."""
    streams: int = 4_096
    owner_connections: int = 2_048
    """How many requests of one owner may be in progress, streams included; at most half of ``connections``."""
    owner_streams: int = 1_024
    """How many streams one owner may follow; at most half of ``streams``."""
    owner_waits: int = 512
    """How many stops of one owner may wait for an end; at most half of ``connections``. Others are answered at once."""
    owner_runs: int = 1_000
    """How many live runs an owner may have in this process; runs without an owner are not counted."""
    owner_processes: int = 32
    """How many of them may have ``isolation="process"``."""
    stream_bytes: int = 64_000_000
    """How much memory large events may take that are being sent to readers, before the slowest reader is dropped."""
    owner_stream_bytes: int = 16_000_000
    """The same for the readers of one owner."""
    rung_seconds: float = 300.0
    """The longest grace, and the longest time of each rung, that a client may ask for."""
    run_seconds: float | None = None
    """The longest time that a client's run may take, even if the client asks for no limit."""
    heartbeat: float = 15.0
    """How many seconds without an event pass before a stream gets a comment, so that proxies keep it open."""
    slow_seconds: float = 20.0
    """How long a reader may read nothing before it is dropped; it can resume."""
    disconnect_grace: float = 1.0
    """How long a run with ``onDisconnect: stop`` waits for its last reader to come back."""

    def policy(self, asked: Policy | None) -> Policy | None:
        """Return the policy that a client gets: what it asks for, up to the limit of each rung."""
        if asked is None:
            return None
        rungs = ("grace", "interrupt", "cancel", "kill")
        return replace(asked, **{rung: min(getattr(asked, rung), self.rung_seconds) for rung in rungs})

    def grace(self, asked: float | None) -> float | None:
        """Return the grace that a stop gets."""
        return None if asked is None else min(asked, self.rung_seconds)

    def limits(self, asked: Limits | None) -> Limits | None:
        """Return the limits that a run gets."""
        if self.run_seconds is None:
            return asked
        if asked is None:
            return Limits(seconds=self.run_seconds)
        return replace(asked, seconds=min(asked.seconds or self.run_seconds, self.run_seconds))
