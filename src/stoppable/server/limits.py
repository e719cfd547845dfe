"""How much a server takes from anybody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds of one server; whoever goes over one is told which."""

    body_bytes: int = 1_000_000
    body_seconds: float = 30.0
    """How long a client may take to send the body of a request."""
    head_bytes: int = 32_768
    head_seconds: float = 15.0
    """How long a client may take to send the head of a request."""
    connections: int = 8_192
    """How many connections there may be; beyond that only stops are taken, for which some more are kept."""
    address_connections: int = 2_048
    """How many connections without a whole request one address may hold."""
    streams: int = 4_096
    heartbeat: float = 15.0
    """After so many seconds without an event a stream gets a comment, so that proxies keep it open."""
    slow_seconds: float = 20.0
    """A reader that takes nothing for so long is dropped; it can resume."""
    disconnect_grace: float = 1.0
    """How long a run with ``onDisconnect: stop`` waits for its last reader to come back."""
