"""Agents that users have saved, what those store, and starts that are under way: one SQLite file of the app."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS agents (owner TEXT, id TEXT, name TEXT, body TEXT, PRIMARY KEY (owner, id));
CREATE TABLE IF NOT EXISTS stored (
    owner TEXT, namespace TEXT, key TEXT, value TEXT, PRIMARY KEY (owner, namespace, key)
);
CREATE TABLE IF NOT EXISTS starts (number INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT, token TEXT, at REAL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Code that can be run, and the agents that it may call, by their names."""

    name: str
    code: str
    agent_id: str | None = None
    tools: Mapping[str, Any] = field(default_factory=dict)
    calls: Mapping[str, str] = field(default_factory=dict)
    """The ids of agents, by name."""


class UnknownAgent(LookupError):
    """Nobody saved an agent with this id."""


@contextlib.contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection, and keep what was changed at the end of the block."""
    connection = sqlite3.connect(path, timeout=10)
    try:
        with connection:
            yield connection
    finally:
        connection.close()


def create_tables(path: Path) -> None:
    """Make the file, unless it is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with connected(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_SCHEMA)


class Agents:
    """The saved agents of every user."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, owner: str, agent_id: str, body: dict[str, Any]) -> None:
        """Keep an agent, in place of one with the same id."""
        row = (owner, agent_id, body["name"], json.dumps(body))
        with connected(self._path) as connection:
            connection.execute("INSERT OR REPLACE INTO agents VALUES (?, ?, ?, ?)", row)

    def of(self, owner: str) -> list[dict[str, Any]]:
        """Return the agents of a user."""
        with connected(self._path) as connection:
            rows = connection.execute("SELECT id, body FROM agents WHERE owner = ? ORDER BY name", (owner,)).fetchall()
        return [{"agentId": agent_id, **json.loads(body)} for agent_id, body in rows]

    def reachable(self, owner: str, ids: list[str]) -> dict[str, Agent]:
        """Return these agents and all that they may call in turn, by id."""
        saved = {body["agentId"]: body for body in self.of(owner)}
        found: dict[str, Agent] = {}
        left = list(ids)
        while left:
            agent_id = left.pop()
            if agent_id in found:
                continue
            if agent_id not in saved:
                raise UnknownAgent(f"there is no agent {agent_id!r}")
            body = saved[agent_id]
            calls = {saved[one]["name"]: one for one in body["gofannonAgents"] if one in saved}
            found[agent_id] = Agent(
                name=body["name"], code=body["code"], agent_id=agent_id, tools=body["tools"], calls=calls
            )
            left += body["gofannonAgents"]
        return found
