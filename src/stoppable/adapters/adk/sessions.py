"""The runs of an ADK session: their addresses, and those that were requested and have not begun."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import parse_qs, quote

from stoppable.errors import RunNotFound
from stoppable.supervisor import BulkStop, Supervisor

_TEXT_LENGTH = 256  # of an owner and of a label
_BODY_LENGTH = 1 << 20  # a request that is longer has images in it: not worth parsing twice


def key_of(app_name: str, user_id: str, session_id: str) -> str:
    """Return the address of a session's runs, for ``supervisor.stop(key=…)`` and ``supervisor.find``."""
    return "adk:" + "/".join(quote(part, safe="") for part in (app_name, user_id, session_id))


def address(app_name: str, user_id: str, session_id: str) -> dict[str, Any]:
    """Return what the runs of a session are started with."""
    return {
        "key": key_of(app_name, user_id, session_id),
        "owner": short(user_id),
        "labels": {"adk.app": short(app_name), "adk.session": short(session_id)},
    }


def short(text: str) -> str:
    """Return a text that fits an owner or a label."""
    return text if len(text) <= _TEXT_LENGTH else "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class Pending:
    """The runs that were requested and have not begun, because the agent may have to be loaded first."""

    def __init__(self) -> None:
        self._runs: dict[str, set[str]] = {}

    def of(self, key: str) -> set[str]:
        """Return the ids of those of a session."""
        return set(self._runs.get(key, ()))

    def add(self, key: str, run_id: str) -> None:
        """Note one."""
        self._runs.setdefault(key, set()).add(run_id)

    def forget(self, key: str | None, run_id: str) -> None:
        """Note that it has begun, or never will."""
        if key is not None and (runs := self._runs.get(key)) is not None:
            runs.discard(run_id)
            if not runs:
                del self._runs[key]


def key_of_request(body: bytes) -> str | None:
    """Return the address of the session that the body of a request for a run names."""
    if len(body) > _BODY_LENGTH:
        return None
    try:
        asked = json.loads(body)
    except ValueError:
        return None
    return _key_in(asked) if isinstance(asked, dict) else None


def key_of_query(query: bytes) -> str | None:
    """Return the address of the session that the query of a live run names."""
    return _key_in({name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()})


def _key_in(asked: dict[str, Any]) -> str | None:
    found = [name for camel, snake in _NAMES if isinstance(name := asked.get(camel, asked.get(snake)), str)]
    return key_of(*found) if len(found) == len(_NAMES) else None


_NAMES = (("appName", "app_name"), ("userId", "user_id"), ("sessionId", "session_id"))


class Session:
    """One session, whose runs may be executed by any process that shares the store."""

    def __init__(self, supervisor: Supervisor, pending: Pending, app_name: str, user_id: str, session_id: str) -> None:
        self._supervisor = supervisor
        self._key, self._owner = key_of(app_name, user_id, session_id), short(user_id)
        self._pending = pending

    async def stop(self, run_id: str | None, *, is_held: bool, **how: Any) -> BulkStop:
        """Stop its runs, or one of them, including those that were requested here and have not begun."""
        if run_id is not None:
            known = await self._has(run_id)
            return BulkStop([await self._supervisor.stop(run_id, owner=self._owner, **how)] if known else [], None)
        # Each by its own id, so that the stop meets that run and never a later one.
        early = [
            await self._supervisor.stop(one, owner=self._owner, if_unknown_hold=True, **how)
            for one in self._pending.of(self._key)
        ]
        found = await self._supervisor.stop(
            key=self._key, owner=self._owner, if_unknown_hold=is_held and not early, **how
        )
        known_ids = {receipt.run_id for receipt in found}
        return BulkStop([*found, *(one for one in early if one.run_id not in known_ids)], None, found.waits_until)

    async def newest(self, run_id: str | None) -> str | None:
        """Return the id of its newest live run, or of the requested one if that belongs to the session."""
        if run_id is not None:
            return run_id if await self._has(run_id) else None
        found = await self._supervisor.find(self._key, owner=self._owner)
        return found[0].id if found else None

    async def _has(self, run_id: str) -> bool:
        try:
            record = await self._supervisor.get(run_id)
        except RunNotFound:
            return False
        return record.key == self._key
